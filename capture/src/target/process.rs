//! What a process is: the facts that a recording tells of it, and those that tell it from another with the same number.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::system::uname;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::{Error, read};

/// A process as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, in the namespace of the recorder.
    pub pid: u32,
    /// The process that started it, or took it over.
    pub parent: u32,
    /// When it started, on `CLOCK_MONOTONIC`, to the kernel's tick (10 ms on most). Before zero for one that is older than
    /// the clock's last stop: the clock does not run while the machine sleeps.
    pub start_ns: i64,
    /// Its main thread's name, at most 15 bytes: by default the program's.
    pub name: String,
    /// Its command line, the words apart; empty for a thread of the kernel, a process that has ended, and for a moment in `exec`.
    pub command: Vec<String>,
    /// The user it runs as.
    pub uid: u32,
    /// Its control group, of the second version where there are both.
    pub cgroup: String,
    /// Its control group in the second version's hierarchy; empty where there is none.
    pub unified_cgroup: String,
    /// The container, by the id that its runtime gave it; `None` outside.
    pub container: Option<String>,
    /// The machine.
    pub host: String,
}

impl Process {
    /// Looks at a process.
    pub fn of(pid: u32) -> Result<Process, Error> {
        let stat = Stat::of(pid)?;
        let command = read(pid, "cmdline")?;
        let command = command.strip_suffix(b"\0").unwrap_or(&command);
        let words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let uid = fs::metadata(format!("/proc/{pid}")).map_err(|error| Error::of(pid, "", error))?.uid();
        let groups = read(pid, "cgroup")?;
        let groups = String::from_utf8_lossy(&groups);
        let cgroup = cgroup(&groups).to_owned();
        Ok(Process {
            pid,
            parent: stat.parent,
            start_ns: stat.start_ns(),
            name: stat.name,
            command: if command.is_empty() { Vec::new() } else { words.collect() },
            uid,
            container: container(&cgroup).map(str::to_owned),
            cgroup,
            unified_cgroup: groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned(),
            host: uname().nodename().to_string_lossy().into_owned(),
        })
    }

    /// Whether the process of this number is still the same one.
    pub fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_ok_and(|stat| stat.is_running() && (stat.start_ns() - self.start_ns).abs() < ONE_S / 2)
    }
}

/// Whether there is a process of this number that has not ended.
pub fn is_running(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(|stat| stat.is_running())
}

/// Demands that a number is that of a process which runs: not of one of its threads, not of one that has ended and waits for
/// its parent, and not of one of the kernel's own.
pub fn must_run(pid: u32) -> Result<(), Error> {
    let status = read(pid, "status")?;
    must_be_process(pid, &String::from_utf8_lossy(&status), is_running(pid))
}

/// The same, of what `/proc/PID/status` says: only what has memory of its own has its size there.
fn must_be_process(pid: u32, status: &str, is_running: bool) -> Result<(), Error> {
    let line = |key| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    match line("Tgid:").and_then(|number| number.parse().ok()) {
        Some(process) if process != pid => Err(Error::Thread { tid: pid, process }),
        _ if !is_running => Err(Error::NoSuchProcess(pid)),
        _ if line("VmSize:").is_none() => Err(Error::Kernel(pid)),
        _ => Ok(()),
    }
}

/// Demands that this program sees processes by the numbers that the kernel itself has for them. In a container it does not, and
/// what the probes tell would be of nobody it knows.
pub fn is_in_first_namespace() -> Result<(), Error> {
    /// `PROC_PID_INIT_INO`
    const FIRST: &str = "pid:[4026531836]";
    let own = fs::read_link("/proc/self/ns/pid").map_err(|error| Error::of(std::process::id(), "ns/pid", error))?;
    if own.as_os_str() == FIRST { Ok(()) } else { Err(Error::Namespace) }
}

/// The threads of a process, by number.
pub fn threads(pid: u32) -> Result<Vec<u32>, Error> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| Error::of(pid, "task", error))?;
    Ok(numbers(folder))
}

/// A thread's name.
pub fn thread_name(pid: u32, tid: u32) -> Result<String, Error> {
    let name = read(pid, &format!("task/{tid}/comm"))?;
    Ok(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// Every process that can be seen, by number.
pub fn all() -> std::io::Result<Vec<u32>> {
    Ok(numbers(fs::read_dir("/proc")?))
}

/// The processes that a process started, and those that these started, by number; not the process itself. One whose parent ended
/// meanwhile belongs to another and is missing.
pub fn descendants(pid: u32) -> std::io::Result<Vec<u32>> {
    let parents: Vec<(u32, u32)> =
        all()?.into_iter().filter_map(|one| Some((one, Stat::of(one).ok()?.parent))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(one, of)| *of == parent && *one != pid).map(|(one, _)| *one));
        next += 1;
    }
    found.remove(0);
    found.sort_unstable();
    Ok(found)
}

fn numbers(folder: fs::ReadDir) -> Vec<u32> {
    let mut all: Vec<u32> = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

const ONE_S: i64 = 1_000_000_000;

/// The processor time that the threads of a process have had.
pub fn cpu_time(pid: u32) -> Result<Duration, Error> {
    let ticks = Stat::of(pid)?.cpu_ticks;
    Ok(Duration::from_secs(ticks) / rustix::param::clock_ticks_per_second().max(1) as u32)
}

/// What of `/proc/PID/stat` is wanted.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    state: char,
    parent: u32,
    /// The processor time of all its threads.
    cpu_ticks: u64,
    /// Since the machine started, on `CLOCK_BOOTTIME`.
    start_ticks: u64,
}

impl Stat {
    fn of(pid: u32) -> Result<Stat, Error> {
        Stat::parse(&read(pid, "stat")?).ok_or(Error::Strange { pid, file: "stat" })
    }

    /// The name is in parentheses and may have any of them in it, so the last one ends it.
    fn parse(text: &[u8]) -> Option<Stat> {
        let open = text.iter().position(|byte| *byte == b'(')?;
        let close = text.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let mut fields = std::str::from_utf8(text.get(close + 1..)?).ok()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        // The 14th and 15th field of all, then the 22nd.
        let (user, system): (u64, u64) = (fields.nth(9)?.parse().ok()?, fields.next()?.parse().ok()?);
        let start_ticks = fields.nth(6)?.parse().ok()?;
        Some(Stat { name, state, parent, cpu_ticks: user.checked_add(system)?, start_ticks })
    }

    fn is_running(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }

    fn start_ns(&self) -> i64 {
        let per_tick = i128::from(ONE_S) / i128::from(rustix::param::clock_ticks_per_second().max(1));
        // To the millisecond, as the two clocks are not read at one instant, and the answer must be the same each time.
        const TO_NS: i64 = 1_000_000;
        let asleep = ns(clock_gettime(ClockId::Boottime)) - ns(clock_gettime(ClockId::Monotonic));
        let asleep = (asleep + TO_NS / 2).div_euclid(TO_NS) * TO_NS;
        let since_boot = i128::from(self.start_ticks) * per_tick - i128::from(asleep);
        i64::try_from(since_boot).unwrap_or(i64::MAX)
    }
}

fn ns(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(ONE_S).saturating_add(time.tv_nsec)
}

/// The path of the second version's hierarchy (`0::/…`), else of the first that has one.
fn cgroup(text: &str) -> &str {
    let paths = || text.lines().filter_map(|line| Some((line.starts_with("0::"), line.splitn(3, ':').nth(2)?)));
    let unified = paths().find(|(unified, path)| *unified && *path != "/");
    let any = || paths().find(|(_, path)| *path != "/");
    unified.or_else(any).map_or("/", |(_, path)| path)
}

/// The id in a control group's path: Docker, containerd, CRI-O and Podman all write 64 hexadecimal digits, some with a
/// prefix and `.scope` around them. The last one is the innermost container.
fn container(cgroup: &str) -> Option<&str> {
    const DIGITS: usize = 64;
    cgroup.rsplit('/').find_map(|part| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let id = part.get(part.len().checked_sub(DIGITS)?..)?;
        let is_whole = part.len() == DIGITS || part.as_bytes()[part.len() - DIGITS - 1] == b'-';
        (is_whole && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_parentheses() {
        let text = b"7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9\n";
        let expected = Stat { name: "a) b".to_owned(), state: 'S', parent: 3, cpu_ticks: 11, start_ticks: 4711 };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse(b"7 (a S 3"), None);
        assert_eq!(Stat::parse(b"7 )a( S 3"), None);
    }

    /// One of the kernel's was recorded, until somebody lost patience.
    #[test]
    fn threads_and_what_the_kernel_runs_itself_are_no_processes() {
        let of = |status: &str, is_running| must_be_process(7, status, is_running).map_err(|error| error.to_string());
        assert_eq!(of("Name:\ta\nTgid:\t7\nVmSize:\t  2048 kB\n", true), Ok(()));
        assert!(of("Name:\ta\nTgid:\t5\nVmSize:\t  2048 kB\n", true).is_err_and(|why| why.contains("process 5")));
        assert!(of("Name:\tkthreadd\nTgid:\t7\n", true).is_err_and(|why| why.contains("kernel")));
        assert!(of("Name:\tzombie\nTgid:\t7\n", false).is_err_and(|why| why.contains("no process 7")));
    }

    #[test]
    fn ids_of_containers() {
        let id = "0123456789abcdef".repeat(4);
        for (path, inside) in [
            (format!("/docker/{id}"), true),
            (format!("/system.slice/docker-{id}.scope"), true),
            (format!("/kubepods.slice/kubepods-burstable.slice/cri-containerd-{id}.scope/init"), true),
            (format!("/machine.slice/libpod-{id}.scope"), true),
            (format!("/x{id}"), false),
            ("/user.slice/user-0.slice".to_owned(), false),
            ("/".to_owned(), false),
        ] {
            assert_eq!(container(&path), inside.then_some(id.as_str()), "{path}");
        }
    }

    #[test]
    fn the_second_version_of_control_groups_is_preferred() {
        assert_eq!(cgroup("12:cpu:/a\n0::/b\n"), "/b");
        assert_eq!(cgroup("12:cpu:/a:b\n0::/\n"), "/a:b");
        assert_eq!(cgroup("0::/\n"), "/");
        assert_eq!(cgroup(""), "/");
    }

    #[test]
    fn a_child() {
        let now = || ns(clock_gettime(ClockId::Monotonic));
        let before = now();
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep runs");
        // In the middle of `exec` a process has no command line.
        let look = || Some(Process::of(child.id()).expect("our child")).filter(|process| !process.command.is_empty());
        let process = std::iter::repeat_with(look).flatten().next().expect("it ends only with a process");
        assert_eq!(process.parent, std::process::id());
        assert_eq!((process.name.as_str(), process.command.join(" ").as_str()), ("sleep", "sleep 60"));
        // Ticks are cut off, so it may seem to be a tick older.
        assert!((before - ONE_S / 50..=now()).contains(&process.start_ns), "{before} {process:?}");
        assert_eq!(process.uid, rustix::process::getuid().as_raw());
        assert!(process.is_alive());
        assert_eq!(Process::of(child.id()).expect("our child").start_ns, process.start_ns, "of one process");
        assert_eq!(threads(child.id()).expect("its threads"), [child.id()]);
        assert!(descendants(std::process::id()).expect("/proc").contains(&child.id()));
        child.kill().expect("it is ours");
        assert!(!{
            // Killed, it is a zombie until it is waited for.
            child.wait().expect("it is ours");
            process.is_alive()
        });
        assert!(matches!(Process::of(child.id()), Err(Error::NoSuchProcess(pid)) if pid == child.id()));
    }

    #[test]
    fn a_process_that_is_not_there() {
        assert_eq!(Process::of(u32::MAX).expect_err("no such number").to_string(), "there is no process 4294967295");
    }
}

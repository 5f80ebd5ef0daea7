//! Waits for records, and for processes to end.
//!
//! The kernel keeps the list of what is waited for: a node has hundreds of processes, and the recorder waits 50 times a second.

use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::{Errno, Result};

/// What says that records came, in the place of a process's number.
const RECORDS: u64 = u64::MAX;
/// So many processes are told of at once; of others the next time.
const MOST_AT_ONCE: usize = 256;

/// See the module.
pub(super) struct Waiting(OwnedFd);

impl Waiting {
    /// Waits for what this descriptor says, too.
    pub(super) fn new(records: impl AsFd) -> Result<Waiting> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, records, epoll::EventData::new_u64(RECORDS), epoll::EventFlags::IN)?;
        Ok(Waiting(epoll))
    }

    /// Waits for the end of this process, until its descriptor is closed.
    pub(super) fn add(&self, pid: u32, pidfd: impl AsFd) -> Result<()> {
        epoll::add(&self.0, pidfd, epoll::EventData::new_u64(pid.into()), epoll::EventFlags::IN)
    }

    /// Waits for any of it. Returns processes that have ended.
    pub(super) fn wait(&self, timeout: &Timespec) -> Result<Vec<u32>> {
        let mut events = Vec::with_capacity(MOST_AT_ONCE);
        match epoll::wait(&self.0, spare_capacity(&mut events), Some(timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(events.iter().filter_map(|event| u32::try_from(event.data.u64()).ok()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    const LONG: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

    #[test]
    fn a_process_that_has_ended_is_told_until_its_descriptor_is_closed() {
        let (records, tell) = rustix::pipe::pipe().unwrap();
        let waiting = Waiting::new(&records).unwrap();
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        waiting.add(child.id(), &pidfd).unwrap();
        assert!(waiting.wait(&AT_ONCE).unwrap().is_empty());
        rustix::io::write(&tell, b"records").unwrap();
        assert!(waiting.wait(&LONG).unwrap().is_empty(), "it is woken by records");
        rustix::io::read(&records, &mut [0; 16]).unwrap();
        drop(child.stdin.take());
        assert_eq!(waiting.wait(&LONG).unwrap(), [child.id()]);
        assert_eq!(waiting.wait(&AT_ONCE).unwrap(), [child.id()]);
        drop(pidfd);
        assert!(waiting.wait(&AT_ONCE).unwrap().is_empty());
        child.wait().unwrap();
    }
}

//! Which copies of the CUDA libraries a running process has: the real ones, in `sleep`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use ktape_capture::target::Error;
use ktape_capture::target::libraries::{FileId, Kind, LibraryFile, mapped};

use super::common::{is_root, real, skipped};

/// A process with libraries, ended when dropped.
struct Sleep(Child);

impl Sleep {
    fn with(libraries: &[PathBuf]) -> Sleep {
        let paths: Vec<String> = libraries.iter().map(|path| path.display().to_string()).collect();
        let child = Command::new("sleep").arg("60").env("LD_PRELOAD", paths.join(" ")).spawn().expect("sleep runs");
        let sleep = Sleep(child);
        let deadline = Instant::now() + Duration::from_secs(20);
        while mapped(sleep.0.id()).map_or(0, |all| all.len()) < libraries.len() {
            assert!(Instant::now() < deadline, "the libraries were not mapped in time");
            std::thread::sleep(Duration::from_millis(5));
        }
        sleep
    }

    fn libraries(&self) -> Vec<LibraryFile> {
        mapped(self.0.id()).expect("our own child")
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_with_both_libraries() {
    let (Some(driver), Some(runtime)) = (real("driver/libcuda.so.1"), real("runtime/libcudart.so.12")) else { return };
    let all = Sleep::with(&[driver.clone(), runtime]).libraries();
    let mut kinds: Vec<Kind> = all.iter().map(|library| library.kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [Kind::Driver, Kind::Runtime]);
    let copy = all.iter().find(|library| library.kind == Kind::Driver).expect("the driver");
    assert_eq!(copy.id, FileId::of(&fs::File::open(&driver).expect("the driver")).expect("its id"));
    assert!(copy.load_address > 0 && copy.load_address.is_multiple_of(4096));
}

/// A package manager replaces a library while programs run on: they keep the old file, and that is where the probe must go.
#[test]
fn a_library_that_was_replaced() {
    let Some(runtime) = real("runtime/libcudart.so.12") else { return };
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("libcudart.so.12");
    let content = fs::read(&runtime).expect("the runtime");
    fs::write(&path, &content).expect("a copy");
    let sleep = Sleep::with(std::slice::from_ref(&path));
    fs::remove_file(&path).expect("it is ours");
    fs::write(&path, b"another").expect("a file");
    let all = sleep.libraries();
    assert_eq!(all.len(), 1);
    assert_eq!(fs::read(all[0].open_path()).expect("the old file"), content);
}

/// Two containers of one image: each sees the file through an overlay of its own, a probe goes into the one beneath.
#[test]
fn one_file_in_two_containers() {
    let Some(runtime) = real("runtime/libcudart.so.12") else { return };
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let of = |name: &str| folder.path().join(name);
    fs::create_dir(of("lower")).expect("a folder");
    fs::copy(&runtime, of("lower/libcudart.so.12")).expect("a copy");
    let mounts: Vec<Overlay> = ["a", "b"].iter().filter_map(|name| Overlay::new(&of("lower"), &of(name))).collect();
    if mounts.len() < 2 {
        return skipped("no overlay can be mounted");
    }
    let sleeps = mounts.iter().map(|mount| Sleep::with(&[mount.0.join("libcudart.so.12")]));
    let ids: Vec<FileId> = sleeps.map(|sleep| sleep.libraries()[0].id).collect();
    assert_eq!(ids[0], ids[1]);
}

/// A mounted overlay, unmounted when dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn new(lower: &Path, at: &Path) -> Option<Overlay> {
        // Without a layer to write into it takes two to read from.
        let second = at.with_extension("second");
        for folder in [second.as_path(), at] {
            fs::create_dir(folder).expect("a folder");
        }
        let options = format!("lowerdir={}:{}", lower.display(), second.display());
        let mounted = Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Overlay(at.to_owned()))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_process_that_is_not_there() {
    assert!(matches!(mapped(u32::MAX), Err(Error::NoSuchProcess(u32::MAX))));
}

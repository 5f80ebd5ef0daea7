//! Finds CUPTI, which comes with the CUDA that a program uses and not with the driver.
//!
//! In this order, and what is found first is taken: a file that the process has mapped already, the one that was asked for, one beside
//! the process's CUDA libraries (PyPI's wheels have it in `nvidia/cuda_cupti/lib`, those of CUDA 13 in `nvidia/cu13/lib`), a toolkit's, and
//! what the loader finds by its name. One of a newer major version than the driver would not work with it, so it is passed over.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use libloading::os::unix;

use super::library::Library;

/// The versions of CUPTI that are looked for: what stands behind `libcupti.so.`, and the major version of CUDA.
const VERSIONS: [(&str, u32); 3] = [("13", 13), ("12", 12), ("11.8", 11)];

/// Loads CUPTI. Where there is none, says where it was looked for.
pub(super) fn find(asked: &[u8]) -> Result<Library, String> {
    let mapped = mapped_files();
    let mut failures = Vec::new();
    let mut load = |path: &Path| Library::load(path.as_os_str().as_bytes()).map_err(|error| failures.push(error)).ok();

    if let Some(library) = mapped.iter().filter(|path| is_cupti(path)).find_map(|path| load(path)) {
        return Ok(library);
    }
    if !asked.is_empty() {
        // Nothing else will do, then.
        return load(Path::new(OsStr::from_bytes(asked))).ok_or_else(|| failures.join("; "));
    }
    let versions: Vec<&str> = fitting(driver_major()).collect();
    for folder in folders(&mapped, &["CUDA_HOME", "CUDA_PATH"].map(std::env::var_os)) {
        for version in &versions {
            let path = folder.join(format!("libcupti.so.{version}"));
            if path.exists()
                && let Some(library) = load(&path)
            {
                return Ok(library);
            }
        }
    }
    versions
        .iter()
        .find_map(|version| load(Path::new(&format!("libcupti.so.{version}"))))
        .ok_or_else(|| failures.join("; "))
}

/// The versions that work with a driver, the newest first.
fn fitting(driver: Option<u32>) -> impl Iterator<Item = &'static str> {
    VERSIONS.iter().filter(move |(_, major)| driver.is_none_or(|driver| *major <= driver)).map(|(version, _)| *version)
}

/// The major version of CUDA that the driver in this process supports.
fn driver_major() -> Option<u32> {
    // SAFETY: only where it is loaded already: nothing is run.
    let driver = unsafe { unix::Library::open(Some("libcuda.so.1"), libc::RTLD_NOW | libc::RTLD_NOLOAD) }.ok()?;
    let mut version: c_int = 0;
    // SAFETY: the driver's function of this name, which may be called at any time.
    let answer = unsafe {
        let get = driver.get::<unsafe extern "C" fn(*mut c_int) -> u32>("cuDriverGetVersion\0").ok()?;
        get(&raw mut version)
    };
    (answer == 0).then_some(version as u32 / 1000)
}

/// Where CUPTI may lie, the likeliest first.
fn folders(mapped: &[PathBuf], toolkits: &[Option<std::ffi::OsString>]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let mut add = |folder: PathBuf| {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    };
    let of_cuda: Vec<&Path> = mapped.iter().filter(|path| is_of_cuda(path)).filter_map(|path| path.parent()).collect();
    for folder in &of_cuda {
        add(folder.to_path_buf());
        add(folder.join("../extras/CUPTI/lib64"));
    }
    // A Python environment, by the wheels' `nvidia` beside any package that is mapped: first one that has CUDA's own.
    let is_environment = |folder: &&Path| {
        folder.file_name().is_some_and(|name| matches!(name.as_bytes(), b"site-packages" | b"dist-packages"))
    };
    for path in of_cuda.into_iter().chain(mapped.iter().map(PathBuf::as_path)) {
        if let Some(environment) = path.ancestors().find(is_environment) {
            let nvidia = environment.join("nvidia");
            add(nvidia.join("cu13/lib"));
            add(nvidia.join("cuda_cupti/lib"));
        }
    }
    for toolkit in toolkits.iter().flatten().map(PathBuf::from).chain([PathBuf::from("/usr/local/cuda")]) {
        add(toolkit.join("extras/CUPTI/lib64"));
        add(toolkit.join("lib64"));
        add(toolkit.join("lib"));
    }
    folders
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

fn is_cupti(path: &Path) -> bool {
    // PyTorch's wheels had it as `libcupti-` and a hash.
    file_name(path).starts_with(b"libcupti.so") || file_name(path).starts_with(b"libcupti-")
}

fn is_of_cuda(path: &Path) -> bool {
    [&b"libcudart"[..], b"libcublas", b"libnvrtc", b"libtorch", b"libc10_cuda"]
        .iter()
        .any(|name| file_name(path).starts_with(name))
}

/// The files that the process has mapped as libraries.
fn mapped_files() -> Vec<PathBuf> {
    extern "C" fn found(info: *mut libc::dl_phdr_info, _: usize, paths: *mut c_void) -> c_int {
        // SAFETY: the loader hands over what it promises, and the vector of the caller.
        let (name, paths) = unsafe { ((*info).dlpi_name, &mut *paths.cast::<Vec<PathBuf>>()) };
        if !name.is_null() {
            // SAFETY: a C string, valid while the loader goes through its list.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes().to_vec();
            paths.push(PathBuf::from(std::ffi::OsString::from_vec(name)));
        }
        0
    }
    let mut paths = Vec::<PathBuf>::new();
    // SAFETY: the callback takes what it is given here, and does not come back into the loader.
    unsafe { libc::dl_iterate_phdr(Some(found), (&raw mut paths).cast()) };
    // The program itself has no name, and what was preloaded by a relative path is no way to anything else.
    paths.retain(|path| path.is_absolute());
    // The loader's list has what was loaded last at its end: links lead to where the files are.
    paths.iter().map(|path| fs::canonicalize(path).unwrap_or_else(|_| path.clone())).collect()
}

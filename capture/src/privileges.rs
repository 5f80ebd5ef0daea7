//! What the recorder may do, and what it gives up: of root's capabilities it keeps those that it needs.

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Without these nothing is recorded. `CAP_SYS_PTRACE` is for reading what a process may not be read by its own user either: a program
/// that runs as its owner (setuid), begun under `capture run`.
const NEEDED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
];

/// With these, libraries are opened too that stand in folders which others may not read, or that were deleted.
const USEFUL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::CHECKPOINT_RESTORE);

/// Why a recorder may not record others' processes.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Capabilities are missing.
    #[error(
        "not permitted: {0} missing; run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep capture"
    )]
    Missing(String),
    /// The kernel does not say, or does not let go.
    #[error("capabilities: {0}")]
    Io(#[from] rustix::io::Errno),
}

/// Demands what is needed to record processes of others.
pub fn demand() -> Result<(), Refused> {
    missing(capabilities(None)?.effective).map_or(Ok(()), |missing| Err(Refused::Missing(missing)))
}

fn missing(of: CapabilitySet) -> Option<String> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(capability, _)| !of.contains(*capability)).map(|(_, name)| *name).collect();
    match missing.as_slice() {
        [] => None,
        [one] => Some(format!("{one} is")),
        several => Some(format!("{} are", several.join(", "))),
    }
}

/// Gives up, for good, whatever is not needed. Of the calling thread and those that it begins: to be called before there are others.
pub fn give_up_the_rest() -> Result<(), Refused> {
    let kept = NEEDED.iter().fold(USEFUL, |all, (capability, _)| all | *capability);
    let held = capabilities(None)?;
    // Only whoever may change the bounding set can; for others it does not matter, as nothing is executed.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            if capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    clear_ambient_capability_set()?;
    let permitted = held.permitted & kept;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    Ok(set_no_new_privs(true)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let all = NEEDED.iter().fold(CapabilitySet::empty(), |all, (capability, _)| all | *capability);
        assert_eq!(missing(all), None);
        assert_eq!(missing(all - CapabilitySet::SYS_PTRACE).as_deref(), Some("CAP_SYS_PTRACE is"));
        assert_eq!(missing(CapabilitySet::SYS_ADMIN).as_deref(), Some("CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE are"));
    }

    #[test]
    fn what_was_given_up_is_gone_for_threads_too() {
        // Capabilities are a thread's own, so that the other tests keep theirs.
        let test = std::thread::spawn(|| {
            give_up_the_rest().expect("anybody may");
            let held = std::thread::spawn(|| capabilities(None).expect("ours").effective).join().expect("it ends");
            assert!(!held.intersects(CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::DAC_OVERRIDE));
        });
        test.join().expect("it ends");
    }
}

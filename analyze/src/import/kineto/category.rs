//! What an event is: decided by its category alone, except where it has none.
//!
//! Neither the pid (a device row's is the device's number, which Python rows use too), nor the name, nor a `stream`
//! argument (ROCm's collectives have one on the host) says it reliably.

/// The name of an instant that is one of [`Category::Memory`]: 2021's have no category.
pub(super) const MEMORY: &str = "[memory]";

/// What a complete event (`"ph": "X"`) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    /// A framework's operator.
    Operator,
    /// A Python function.
    Python,
    /// A range that somebody named, on the host.
    Annotation,
    /// Something recorded or projected on a stream that is no device work: annotations, synchronisations, events.
    OnStream,
    /// A synchronisation record, which tells more of the host call with its correlation.
    Sync,
    /// A kernel.
    Kernel,
    /// A copy.
    Memcpy,
    /// A memset.
    Memset,
    /// A call of the runtime API.
    Runtime,
    /// A call of the driver API.
    Driver,
    /// The profiler's own work.
    Overhead,
    /// The caching allocator handed memory out or took it back. An instant, by its name.
    Memory,
    /// What a thread did, of a tool that gives no categories.
    Unnamed,
    /// Anything else; kept as a range under its category.
    Other,
}

impl Category {
    /// The category of a complete event; 2021's names are capitalised.
    pub(super) fn of(name: &str) -> Category {
        match name {
            "cpu_op" | "Operator" => Category::Operator,
            "python_function" => Category::Python,
            // VizTracer's functions; what nsys2json makes of a report.
            "FEE" => Category::Python,
            "cuda" => Category::Kernel,
            "cuda_api" => Category::Runtime,
            "nvtx" => Category::Annotation,
            "user_annotation" => Category::Annotation,
            "gpu_user_annotation" | "cuda_event" => Category::OnStream,
            "cuda_sync" => Category::Sync,
            "kernel" | "Kernel" => Category::Kernel,
            "gpu_memcpy" | "Memcpy" => Category::Memcpy,
            "gpu_memset" | "Memset" => Category::Memset,
            "Runtime" => Category::Runtime,
            "overhead" => Category::Overhead,
            // cuda_runtime (HIP's too), xpu_runtime, … ; cuda_driver, xpu_driver, …
            _ if name.ends_with("_runtime") => Category::Runtime,
            _ if name.ends_with("_driver") => Category::Driver,
            _ => Category::Other,
        }
    }

    /// Whether a process with such an event is one that really ran, not a row that the profiler made up.
    pub(super) fn is_of_a_real_process(self) -> bool {
        matches!(
            self,
            Category::Operator | Category::Annotation | Category::Memory | Category::Runtime | Category::Driver
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_categories() {
        for (old, new) in [
            ("Operator", "cpu_op"),
            ("Kernel", "kernel"),
            ("Memcpy", "gpu_memcpy"),
            ("Memset", "gpu_memset"),
            ("Runtime", "cuda_runtime"),
        ] {
            assert_eq!(Category::of(old), Category::of(new));
            assert_ne!(Category::of(old), Category::Other);
        }
        assert_eq!(Category::of("mtia_ccp_events"), Category::Other);
        assert_eq!(Category::of(""), Category::Other);
    }
}

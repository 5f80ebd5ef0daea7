//! Who wrote a Chrome trace, where it was not PyTorch's profiler.

use std::fmt;

/// A tool that writes Chrome JSON. Where a trace has signs of several, it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub enum Tool {
    /// TensorFlow's profiler.
    TensorFlow,
    /// XLA's profiler, as JAX has it: TensorFlow's with XLA's own operations.
    Xla,
    /// VizTracer.
    VizTracer,
    /// rocprof, the first version.
    Rocprof,
    /// A report of Nsight Systems, converted by nsys2json.
    Nsys2json,
}

impl Tool {
    /// The tool that gives events this category.
    pub(super) fn of_category(category: &str) -> Option<Tool> {
        match category {
            "FEE" => Some(Tool::VizTracer),
            "cuda" | "cuda_api" => Some(Tool::Nsys2json),
            _ => None,
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tool::TensorFlow => "TensorFlow",
            Tool::Xla => "JAX/XLA",
            Tool::VizTracer => "VizTracer",
            Tool::Rocprof => "rocprof",
            Tool::Nsys2json => "nsys2json",
        })
    }
}

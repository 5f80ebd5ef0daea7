//! Which launches are recorded, where not all are: by the Python files in their stacks, and by the names of their kernels.
//!
//! A stack is decided once, when its body comes; the programs are told of those that are left out, and send no launch that has
//! one. Until they know, and for kernels, launches come, and are left out here. What is not known is recorded: a stack that is not
//! whole may have the file in the part that is missing, a kernel without a name may be called anything.

use ktape_format::event::Launch;
use regex::Regex;

use super::open::Open;
use crate::probes::functions::Meaning;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct LaunchScope {
    files: Vec<Regex>,
    kernel: Option<Regex>,
}

impl LaunchScope {
    /// Launches with a file in their stack that one of these patterns says, in which `*` stands for any characters and `?` for one; of
    /// kernels in whose names this expression is found.
    ///
    /// # Errors
    ///
    /// If the expression is none.
    pub fn new(files: &[String], kernel: Option<&str>) -> Result<LaunchScope, regex::Error> {
        let one = |pattern: &String| {
            let expression = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
            Regex::new(&format!("(?s)^{expression}$"))
        };
        Ok(LaunchScope {
            files: files.iter().map(one).collect::<Result<_, _>>()?,
            kernel: kernel.map(Regex::new).transpose()?,
        })
    }

    /// Whether launches are told apart by their kernels.
    pub(super) fn is_by_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether launches are told apart by their stacks.
    pub fn is_by_stack(&self) -> bool {
        !self.files.is_empty()
    }

    pub(super) fn has_file(&self, file: &str) -> bool {
        self.files.iter().any(|pattern| pattern.is_match(file))
    }

    pub(super) fn has_kernel(&self, name: &str) -> bool {
        self.kernel.as_ref().is_none_or(|kernel| kernel.is_match(name))
    }
}

/// Whether calls of this meaning are launches, or are only there to explain one.
pub(super) fn is_of_launch(meaning: Meaning) -> bool {
    meaning.is_launch() || meaning == Meaning::RuntimeLaunch
}

/// Takes out of a call the launches that are not wanted. True if nothing is left of it.
pub(super) fn keep_only(open: &mut Open, is_wanted: impl Fn(&Launch) -> bool) -> bool {
    match open {
        Open::Launch(launch) => !is_wanted(launch),
        Open::Launches(launches) => {
            launches.retain(is_wanted);
            launches.is_empty()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_by_pattern_and_kernels_by_expression() {
        let files = ["*/model?.py".to_owned(), "/a+b/*".to_owned()];
        let scope = LaunchScope::new(&files, Some("gemm|^_Z3foo")).expect("they are right");
        let has = ["/x/model1.py", "/x/model.py", "/a+b/c", "/aab/c", "/x/model1.pyc"].map(|file| scope.has_file(file));
        assert_eq!(has, [true, false, true, false, false]);
        assert_eq!(["sgemm_128", "_Z3fooPf", "x_Z3foo"].map(|name| scope.has_kernel(name)), [true, true, false]);
        assert!(!LaunchScope::default().is_by_stack() && LaunchScope::default().has_kernel("any"));
        assert!(LaunchScope::new(&[], Some("(")).is_err());
    }
}

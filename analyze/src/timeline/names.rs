//! What people are shown: demangled and shortened kernel names, frames as profilers print them.

use std::borrow::Cow;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use ktape_format::definition::{Frame, KernelName, Property, Stack, frame_kind, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Table as _};
use rustc_hash::FxHashMap;

/// Gives kernels the names that were learned after they were defined: a recorder meets a kernel by its handle first, and
/// what it is called may come later, as a property of it. Of several the last counts.
///
/// Done once, when a trace comes into memory, so that whoever asks for a name has the learned one.
pub(super) fn learn_kernel_names(definitions: &mut Definitions) {
    let is_name = |row: &Property| {
        row.subject_kind == DefinitionKind::Kernel as u16
            && definitions.string(row.key) == property::NAME
            && !definitions.string(row.value).is_empty()
    };
    let learned: Vec<(u32, u32)> =
        definitions.properties.rows().filter(is_name).map(|row| (row.subject, row.value)).collect();
    for (kernel, name) in learned {
        let known = (kernel as usize).checked_sub(1).and_then(|row| definitions.kernels.name.get_mut(row));
        known.into_iter().for_each(|known| *known = name);
    }
}

/// A text from a stranger's file on one line, without power over a terminal and fit for XML: control characters, which
/// XML does not have even escaped, become a sign.
pub fn printable(text: &str) -> Cow<'_, str> {
    let odd = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    if text.contains(odd) { Cow::Owned(text.replace(odd, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// The C++ name behind a mangled one; the name itself where it is not mangled or cannot be read.
///
/// Recursion is capped: kernel names come from strangers, and CUTLASS nests templates deeply.
pub fn demangled(name: &str) -> Cow<'_, str> {
    if !name.starts_with("_Z") {
        return Cow::Borrowed(name);
    }
    Symbol::new_with_options(name, &ParseOptions::default().recursion_limit(128))
        .ok()
        .and_then(|symbol| symbol.demangle_with_options(&DemangleOptions::new().recursion_limit(256)).ok())
        .map_or(Cow::Borrowed(name), Cow::Owned)
}

/// Stands for a namespace without a name, in the demangler's words.
const ANONYMOUS: &str = "(anonymous namespace)";

/// A type's or method's, which labels leave out.
const CONST: &str = " const";

/// The next token of a demangled name: a character, or what has a bracket or space in it that separates nothing.
fn token(rest: &str) -> &str {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if rest.strip_prefix(CONST).is_some_and(|behind| !behind.starts_with(is_word)) {
        return CONST;
    }
    let whole = [ANONYMOUS, "operator()", "->"].into_iter().find(|whole| rest.starts_with(whole));
    whole.unwrap_or_else(|| &rest[..rest.chars().next().map_or(0, char::len_utf8)])
}

/// Takes a token into account in the brackets that are open. Within parentheses a `>` is a comparison:
/// `enable_if<((8)>(0)), void>`.
fn nest(open: &mut Vec<u8>, token: &str) {
    match token {
        "<" | "(" => open.extend(token.bytes()),
        ">" => _ = open.pop_if(|bracket| *bracket == b'<'),
        ")" => open.truncate(open.iter().rposition(|bracket| *bracket == b'(').unwrap_or(open.len())),
        _ => {}
    }
}

/// The function of a demangled name, with its namespaces and template arguments: what stands before the last parameter
/// list, behind the return type, which only templates have in their name.
fn function_part(name: &str) -> &str {
    let is_template = name.contains('<');
    let mut open = Vec::new();
    let (mut at, mut begin, mut function) = (0, 0, None);
    while at < name.len() {
        let (token, rest) = (token(&name[at..]), &name[at..]);
        match token {
            _ if !open.is_empty() => {}
            "(" => function = Some(begin..at),
            " " if rest.starts_with(" [clone") => break,
            " " if is_template || &name[begin..at] == "void" => begin = at + 1,
            _ => {}
        }
        nest(&mut open, token);
        at += token.len();
    }
    &name[function.unwrap_or(begin..at)]
}

/// A native function's name for a stack: demangled, without return type and parameters.
pub fn function_name(symbol: &str) -> String {
    function_part(&demangled(symbol)).trim().to_owned()
}

/// A kernel's name without return type, template arguments and parameters, as Nsight's "short name":
/// `void at::native::foo<4, bar>(int)` is `at::native::foo`.
pub fn short_kernel_name(name: &str) -> String {
    let name = demangled(name);
    let mut short = String::with_capacity(name.len().min(64));
    let mut open = Vec::new();
    let mut rest = function_part(&name);
    while !rest.is_empty() {
        let token = token(rest);
        let is_outside = open.is_empty();
        nest(&mut open, token);
        if is_outside && open.is_empty() && token != CONST {
            short.push_str(token);
        }
        rest = &rest[token.len()..];
    }
    let short = short.trim();
    if short.is_empty() { name.into_owned() } else { short.to_owned() }
}

/// A kernel's name without namespaces, return type and parameters, but with its template arguments:
/// `void at::native::foo<4, at::bar<int> >(int)` is `foo<4, bar<int>>`.
///
/// Unlike [`short_kernel_name`] it tells the instances of a template apart, and one CUTLASS kernel from another.
pub fn kernel_label(name: &str) -> String {
    let name = demangled(name);
    let mut label = String::with_capacity(name.len().min(128));
    let mut parens = 0_usize;
    let mut rest = function_part(&name);
    while !rest.is_empty() {
        let mut step = token(rest);
        match step {
            "(" => parens += 1,
            ")" => parens = parens.saturating_sub(1),
            _ if parens > 0 => {}
            CONST => {}
            " " if rest.starts_with(" >") => {}
            ":" if rest.starts_with("::") => {
                step = "::";
                drop_qualifier(&mut label, &rest[2..]);
            }
            _ => label.push_str(step),
        }
        rest = &rest[step.len()..];
    }
    let label = label.trim();
    if label.is_empty() { name.into_owned() } else { label.to_owned() }
}

/// At a `::`: takes the namespace before it off `label`, and keeps what is needed to tell one lambda from another.
fn drop_qualifier(label: &mut String, rest: &str) {
    let word = label.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_').len();
    if let Some(before) = label.strip_suffix("operator()") {
        label.truncate(before.trim_end_matches(':').len());
        label.push_str("::");
    } else if rest.starts_with('{') || label.ends_with(['}', '>']) {
        label.push_str("::");
    } else if !rest.starts_with("operator") {
        label.truncate(label.strip_suffix(ANONYMOUS).map_or(word, str::len));
    } else {
        label.push_str("::");
    }
}

/// Labels for kernels, by id: as short as they can be while different names keep different labels.
///
/// Which label a kernel gets follows from its name alone unless that would make it the same as another's.
pub fn kernel_labels(definitions: &Definitions, kernels: impl IntoIterator<Item = u32>) -> FxHashMap<u32, String> {
    /// Long enough for any hand-written kernel; CUTLASS's names run to thousands of characters.
    const SHORT_CHARS: usize = 120;
    let candidates: [fn(&str) -> String; 4] = [
        |name| {
            let label = kernel_label(name);
            label.char_indices().nth(SHORT_CHARS).map_or(label.clone(), |(end, _)| format!("{}…", &label[..end]))
        },
        kernel_label,
        |name| demangled(name).into_owned(),
        str::to_owned,
    ];
    let name_of = |kernel: u32| definitions.get::<KernelName>(kernel).map_or("", |row| definitions.string(row.name));
    let mut names: Vec<(&str, Vec<u32>)> = Vec::new();
    let mut by_name: FxHashMap<&str, usize> = FxHashMap::default();
    for kernel in kernels {
        let at = *by_name.entry(name_of(kernel)).or_insert(names.len());
        if at == names.len() {
            names.push((name_of(kernel), Vec::new()));
        }
        names[at].1.push(kernel);
    }
    let mut labels = FxHashMap::default();
    for candidate in candidates {
        let proposed: Vec<String> = names.iter().map(|(name, _)| candidate(name)).collect();
        let mut uses: FxHashMap<&str, usize> = FxHashMap::default();
        for label in &proposed {
            *uses.entry(label).or_default() += 1;
        }
        let unique: Vec<bool> = proposed.iter().map(|label| uses[label.as_str()] == 1).collect();
        let mut row = 0..;
        names.retain(|(_, kernels)| {
            let row = row.next().expect("endless");
            if unique[row] {
                labels.extend(kernels.iter().map(|&kernel| (kernel, proposed[row].clone())));
            }
            !unique[row]
        });
    }
    for label in labels.values_mut().filter(|label| label.is_empty()) {
        label.push_str("[unnamed kernel]");
    }
    labels
}

/// Stacks with more frames are cut at the root end, and what is cut is said ([`frames_cut`]). Python stops at 1000;
/// only a damaged or hostile tape goes on for long, and what is written of it would grow with the square of the depth.
pub const MOST_FRAMES: usize = 2048;

/// What stands at the root of a stack of more than [`MOST_FRAMES`].
pub fn frames_cut() -> String {
    format!("[callers beyond {MOST_FRAMES} frames]")
}

/// A frame in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameName<'a> {
    /// Where the name comes from ([`frame_kind`]).
    pub kind: u8,
    /// The function, operator or range.
    pub name: Cow<'a, str>,
    /// Its file as the source has it; empty for none.
    pub file: &'a str,
    /// The line being executed where it is known, else that on which the function begins; 0 for neither.
    pub line: u32,
}

impl<'a> FrameName<'a> {
    /// The frame with this id.
    pub fn of_frame(definitions: &'a Definitions, frame: u32) -> FrameName<'a> {
        match definitions.get::<Frame>(frame) {
            Some(row) => FrameName {
                kind: row.kind,
                name: Cow::Borrowed(definitions.string(row.name)),
                file: definitions.string(row.file),
                line: row.line,
            },
            None => FrameName {
                kind: frame_kind::UNKNOWN,
                name: Cow::Owned(format!("[frame {frame} lost]")),
                file: "",
                line: 0,
            },
        }
    }

    /// The innermost frame of a stack.
    pub fn of_stack(definitions: &'a Definitions, stack: &Stack) -> FrameName<'a> {
        let frame = FrameName::of_frame(definitions, stack.frame);
        let line = if stack.line == 0 { frame.line } else { stack.line };
        FrameName { line, ..frame }
    }

    /// As py-spy and speedscope print it: `forward (model.py:42)`; an operator or range by its name alone.
    pub fn full(&self) -> String {
        self.print(&self.name, self.file)
    }

    /// As [`FrameName::full`], without what differs between two runs, two machines or two turns of a loop: a package's
    /// place on the disk, an object's address, and which instance of a module or step of a profiler it is.
    pub fn short(&self) -> String {
        if self.kind == frame_kind::NATIVE && self.line == 0 {
            // Of a library its name, unless the place in it begins with that already.
            let library = self.file.rsplit('/').next().unwrap_or_default();
            let is_said = self.name.strip_prefix(library).is_some_and(|rest| rest.starts_with("+0x"));
            return self.print(&self.name, if is_said { "" } else { library });
        }
        self.print(&without_instance(&without_addresses(&self.name).0), short_path(self.file))
    }

    fn print(&self, name: &str, file: &str) -> String {
        match (self.kind, self.line) {
            (frame_kind::PYTHON | frame_kind::NATIVE, 0) if !file.is_empty() => format!("{name} ({file})"),
            (frame_kind::PYTHON | frame_kind::NATIVE, line) if !file.is_empty() => format!("{name} ({file}:{line})"),
            _ => name.to_owned(),
        }
    }
}

/// A path from its package on: `/usr/lib/python3.12/site-packages/torch/nn/functional.py` is `torch/nn/functional.py`.
fn short_path(file: &str) -> &str {
    for packages in ["/site-packages/", "/dist-packages/"] {
        if let Some(at) = file.rfind(packages) {
            return &file[at + packages.len()..];
        }
    }
    let Some(at) = file.find("/lib/python3.") else { return file };
    let version = &file[at + "/lib/python3.".len()..];
    version.split_once('/').map_or(file, |(_, rest)| rest)
}

/// A name without the addresses of objects, and how many it had: `<method of type object at 0x7f3a>` is
/// `<method of type object>`. They differ from call to call and would make one function thousands.
pub fn without_addresses(name: &str) -> (Cow<'_, str>, u64) {
    const MARK: &str = " at 0x";
    if !name.contains(MARK) {
        return (Cow::Borrowed(name), 0);
    }
    let mut parts = name.split(MARK);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    let mut addresses = 0;
    for part in parts {
        kept.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        addresses += 1;
    }
    (Cow::Owned(kept), addresses)
}

/// A name without the number that PyTorch's profiler gives the instances of modules and its steps: all layers of
/// `nn.Module: Block_0`, `nn.Module: Block_1`, … are `nn.Module: Block_*`, all steps `ProfilerStep#*`.
fn without_instance(name: &str) -> Cow<'_, str> {
    let module = name.strip_prefix("nn.Module: ").and_then(|module| module.rsplit_once('_')).map(|(_, number)| number);
    match module.or_else(|| name.strip_prefix("ProfilerStep#")) {
        Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Cow::Owned(format!("{}*", &name[..name.len() - number.len()]))
        }
        _ => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use ktape_format::{Memory, Sink};

    use super::*;

    #[test]
    fn the_name_that_was_learned_last_counts() {
        let mut memory = Memory::default();
        let mut kernel = |name: &str| {
            let Ok(name) = memory.string(name);
            let Ok(kernel) = memory.define(KernelName { name, module: 0 });
            kernel
        };
        let (unknown, known) = (kernel("unknown kernel @0x5620 of process 7"), kernel("gemm"));
        let kind = DefinitionKind::Kernel as u16;
        for (subject, key, value) in [
            (unknown, property::NAME, "wrong"),
            (unknown, property::NAME, "gemm"),
            (unknown, "color", "red"),
            (known, property::NAME, ""),
            (0, property::NAME, "of none"),
            (99, property::NAME, "of one that is lost"),
        ] {
            let Ok(()) = memory.property(kind, subject, key, value);
        }
        let Ok(()) = memory.property(DefinitionKind::Process as u16, known, property::NAME, "python3");
        learn_kernel_names(&mut memory.definitions);
        let name = |kernel: u32| memory.definitions.string(memory.definitions.kernels.name[kernel as usize - 1]);
        assert_eq!((name(unknown), name(known)), ("gemm", "gemm"));
        let labels = kernel_labels(&memory.definitions, [unknown, known]);
        assert_eq!(labels[&unknown], labels[&known]);
    }

    #[test]
    fn short_names() {
        assert_eq!(
            short_kernel_name("void at::native::foo<4, bar<int>, std::array<char*, 2ul> >(int, char*)"),
            "at::native::foo"
        );
        assert_eq!(
            short_kernel_name("at::native::(anonymous namespace)::norm<float>(int)"),
            "at::native::(anonymous namespace)::norm"
        );
        assert_eq!(short_kernel_name("ampere_sgemm_128x64_nn"), "ampere_sgemm_128x64_nn");
        assert_eq!(short_kernel_name("_Z9my_kernelPfi"), "my_kernel");
        let guarded =
            "std::enable_if<(((8)>(0)))&&vllm::convert<c10::BFloat16>::exists, void>::type vllm::norm<8>(int)";
        assert_eq!(short_kernel_name(guarded), "vllm::norm", "the return type is no name, `>` within `()` no bracket");
        assert_eq!(short_kernel_name("_Znonsense"), "_Znonsense");
        assert_eq!(short_kernel_name("(weird)"), "(weird)");
    }

    #[test]
    fn a_return_type_is_not_the_functions_name() {
        // The first two are cuBLAS's and vLLM's, from traces of an H100 and a B200.
        for (name, short, label) in [
            (
                "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 7>(cublasGemvParams<int>)",
                "internal::gemvx::kernel",
                "kernel<int, float, 7>",
            ),
            (
                "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type \
                 vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
                "vllm::fused_add_rms_norm_kernel",
                "fused_add_rms_norm_kernel<BFloat16, 8>",
            ),
            ("void constant_kernel<constant, int const*>(int)", "constant_kernel", "constant_kernel<constant, int*>"),
            ("decltype(f(0)) a::g<int>(int) [clone .kd]", "a::g", "g<int>"),
            (
                "void a::f<int>(int) const::{lambda(float)#1}::operator()<4>(float) const",
                "a::f::{lambda#1}::operator()",
                "f<int>::{lambda#1}::operator()<4>",
            ),
        ] {
            assert_eq!(short_kernel_name(name), short);
            assert_eq!(kernel_label(name), label);
        }
    }

    #[test]
    fn labels_tell_the_instances_of_a_template_apart() {
        assert_eq!(
            kernel_label("void at::native::foo<4, at::native::bar<int>, std::array<char*, 2ul> >(int, char*)"),
            "foo<4, bar<int>, array<char*, 2ul>>"
        );
        assert_eq!(
            kernel_label("void cutlass::Kernel2<cutlass_80_gemm_nn>(cutlass_80_gemm_nn::Params)"),
            "Kernel2<cutlass_80_gemm_nn>"
        );
        assert_eq!(
            kernel_label(
                "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, float const&)::{lambda(int)#1}>(int, at::X)"
            ),
            "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<direct_copy_kernel_cuda::{lambda#3}::{lambda#7}::{lambda#1}>::{lambda#1}>"
        );
        assert_eq!(
            kernel_label("void (anonymous namespace)::softmax<(anonymous namespace)::Max<float>, (Kind)3>(float*)"),
            "softmax<Max<float>, 3>"
        );
        assert_eq!(kernel_label("ncclDevKernel_AllReduce(ncclArgs<4096ul>)"), "ncclDevKernel_AllReduce");
        assert_eq!(kernel_label("std::enable_if<true, void>::type scan<int>(int*)"), "scan<int>");
        assert_eq!(kernel_label("_Z9my_kernelPfi"), "my_kernel");
        assert_eq!(kernel_label("(weird"), "(weird");
        assert_eq!(kernel_label("a<b"), "a<b");
    }

    #[test]
    fn kernels_that_differ_keep_different_labels() {
        let mut memory = Memory::default();
        let long = |tail: &str| format!("void k<{}, {tail}>(int)", "x".repeat(200));
        let names =
            ["void f<a::x>(int)", "void f<b::x>(int)", "void g<a::x>(int)", "g<x>", &long("1"), &long("2"), "", "k"];
        let kernels: Vec<u32> = names
            .iter()
            .map(|name| {
                let Ok(name) = memory.string(name);
                let Ok(kernel) = memory.define(KernelName { name, module: 0 });
                kernel
            })
            .collect();
        let labels = kernel_labels(&memory.definitions, kernels.iter().copied());
        assert_eq!(labels.values().collect::<HashSet<_>>().len(), names.len());
        assert_eq!(labels[&kernels[0]], "void f<a::x>(int)");
        assert_eq!(labels[&kernels[6]], "[unnamed kernel]");
        assert_eq!(labels[&kernels[7]], "k");
    }

    #[test]
    fn frames_lose_what_differs_between_runs() {
        let frame =
            |name: &'static str, file, line| FrameName { kind: frame_kind::PYTHON, name: name.into(), file, line };
        let linear = frame("linear", "/venv/lib/python3.12/site-packages/torch/nn/functional.py", 9);
        assert_eq!(linear.short(), "linear (torch/nn/functional.py:9)");
        assert_eq!(linear.full(), "linear (/venv/lib/python3.12/site-packages/torch/nn/functional.py:9)");
        assert_eq!(frame("run", "/usr/lib/python3.12/threading.py", 0).short(), "run (threading.py)");
        assert_eq!(frame("main", "serve.py", 3).short(), "main (serve.py:3)");
        assert_eq!(frame("nn.Module: Block_12", "", 0).short(), "nn.Module: Block_*");
        assert_eq!(frame("nn.Module: Block_12", "", 0).full(), "nn.Module: Block_12");
        assert_eq!(frame("nn.Module: Block_a", "", 0).short(), "nn.Module: Block_a");
        assert_eq!(frame("ProfilerStep#6", "", 0).short(), "ProfilerStep#*");
        assert_eq!(frame("layer_1", "", 0).short(), "layer_1");
        assert_eq!(frame("<m of <X at 0x7f3a> at 0x9>", "", 0).short(), "<m of <X>>");
    }
}

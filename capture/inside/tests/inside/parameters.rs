//! Where arguments lie in what CUPTI hands over, against its headers and the driver's.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use ktape_inside::calls::Parameters;

use super::recorder::part;
use super::skip;

/// Names of the driver's that only its own sources have: what addresses were before CUDA 3.2.
const OLDER: &str = "typedef unsigned int CUdeviceptr_v1;
typedef void CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY3D_DESCRIPTOR_v1, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D_v1;\n";

/// The structures of arguments in a header: the function, the whole text, the fields' names.
fn structures(header: &str) -> Vec<(&str, String, Vec<&str>)> {
    let structures = header.split("typedef struct ").skip(1).filter_map(|text| {
        let (name, rest) = text.split_once("_params_st {")?;
        let (fields, _) = rest.split_once('}')?;
        let whole = format!("typedef struct {{{fields}}} {name}_params;\n");
        let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let name_of = |field: &'_ str| field.rsplit(|letter| !is_of_name(letter)).next().unwrap_or_default().len();
        let fields = fields.split(';').map(str::trim).filter(|field| !field.is_empty());
        Some((name, whole, fields.map(|field| &field[field.len() - name_of(field)..]).collect()))
    });
    structures.collect()
}

#[test]
fn arguments_lie_where_the_headers_say() {
    let Ok(versions) = fs::read_dir(part("cupti")) else { return skip("fixtures/cupti/setup.sh has not run") };
    if Command::new("cc").arg("--version").output().is_err() {
        return skip("there is no C compiler");
    }
    for version in versions.map(|entry| entry.unwrap().path().join("include")) {
        let header = fs::read_to_string(version.join("generated_cuda_meta.h")).unwrap();
        let (mut source, mut known) = (format!("#include <stddef.h>\n#include \"cuda.h\"\n{OLDER}"), 0);
        for (function, structure, fields) in structures(&header) {
            let Some(parameters) = Parameters::of(function) else { continue };
            known += 1;
            source += &structure;
            // An argument that is no word has no place among them.
            let size = |field: &str| format!("sizeof((({function}_params *)0)->{field})");
            let mut places = parameters.places();
            for field in fields.iter().filter(|field| **field != "handle" || !function.starts_with("cuIpcOpen")) {
                let Some((offset, bytes)) = places.next() else { break };
                let wrong = format!("\"{function}.{field} is elsewhere\"");
                writeln!(
                    source,
                    "_Static_assert(offsetof({function}_params, {field}) == {offset} && {} == {bytes}, {wrong});",
                    size(field)
                )
                .unwrap();
            }
            assert!(places.next().is_none(), "{function} has fewer arguments");
            // One whose kernel is launched says so where that is.
            if let Some(index) = parameters.kernel.checked_sub(1) {
                assert!(structure.contains(&format!("CUfunction {};", fields[usize::from(index)])), "{structure}");
            }
        }
        assert!(known > 250, "{known} functions in {}", version.display());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("test.c");
        fs::write(&file, source).unwrap();
        let compiled = Command::new("cc").args(["-w", "-fsyntax-only", "-I"]).arg(&version).arg(file).output().unwrap();
        assert!(compiled.status.success(), "{}: {}", version.display(), String::from_utf8_lossy(&compiled.stderr));
    }
}

//! `docs/format.md` lists every table and column as they are declared.

use std::fmt::Write as _;

use ktape_format::Definition;
use ktape_format::definition::{DefinitionVisitor, visit_definitions};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::{Refers, Row, Scalar};

struct Markdown(String);

impl Markdown {
    fn table<R: Row>(&mut self) {
        let Markdown(text) = self;
        write!(
            text,
            "\n### {} (table {})\n\n| column | name | type | refers to |\n|---|---|---|---|\n",
            R::NAME,
            R::KIND
        )
        .unwrap();
        for (number, spec) in R::COLUMNS.iter().enumerate() {
            let scalar = match spec.scalar {
                Scalar::U8 => "u8",
                Scalar::U16 => "u16",
                Scalar::U32 => "u32",
                Scalar::U64 => "u64",
                Scalar::I32 => "i32",
                Scalar::I64 => "i64",
                Scalar::F64 => "f64",
            };
            let refers = match spec.refers {
                Refers::Nothing => String::new(),
                Refers::To(kind) => format!("→ {}", kind as u16),
                Refers::Code(names) => format!("codes {}", names.join(", ")),
            };
            writeln!(text, "| {number} | `{}` | {scalar} | {refers} |", spec.name).unwrap();
        }
    }
}

impl KindVisitor for Markdown {
    type Error = std::convert::Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
        self.table::<E>();
        Ok(())
    }
}

impl DefinitionVisitor for Markdown {
    type Error = std::convert::Infallible;
    fn visit<T: Definition>(&mut self) -> Result<(), Self::Error> {
        self.table::<T>();
        Ok(())
    }
}

#[test]
fn the_specification_lists_every_table() {
    let mut markdown = Markdown(String::new());
    let Ok(()) = visit_kinds(&mut markdown);
    let Ok(()) = visit_definitions(&mut markdown);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/format.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (prose, tables) = page.split_once("<!-- tables -->\n").expect("the page has the mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{prose}<!-- tables -->\n{}", markdown.0)).unwrap();
    } else {
        assert_eq!(tables, markdown.0, "run this test with UPDATE_DOCS=1");
    }
}

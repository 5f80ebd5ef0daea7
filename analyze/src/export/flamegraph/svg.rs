//! The tree drawn as an interactive SVG, by inferno.
//!
//! inferno takes folded text with integer weights and draws what it is given; how it is given decides the rest:
//! - Each frame ends in one of the four annotations that inferno takes off again (`_[k]`), by its class. So a frame
//!   whose name ends in a number is not taken for a second weight, and a kernel does not merge with an operator of
//!   the same name.
//! - Frames too thin to be seen are left out here, where they can be counted, and not by inferno, where they vanish.
//!   Their weight stays in the frame that they stand on.
//! - inferno insists on alphabetical order except for a "flame chart", which it reads backwards.

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection, from_lines};

use super::tree::Tree;
use super::{Class, Label};
use crate::timeline::names::printable;

/// The width of the picture: a page's, and most of a screen's.
const WIDTH_PX: u64 = 1600;

/// Frames of less than a tenth of a pixel are not drawn.
const DRAWN_PER_PX: u64 = 10;

/// What thin frames at the root stand on; inferno takes no weight for the root itself.
const THIN_ROOTS: &str = "[too thin to be drawn]_[w]";

/// What follows inferno's own style. A browser that darkens pages would darken the background and leave the text black;
/// and the search, which inferno almost hides, is worth finding.
const STYLE: &str = ":root { color-scheme: only light; }\n#search { opacity:0.6; }\n</style>";

/// What is written around the picture.
#[derive(Clone, Debug)]
pub struct Caption {
    /// The heading.
    pub title: String,
    /// The line below it.
    pub subtitle: String,
    /// What the weights count: "ns", "bytes".
    pub unit: String,
    /// Whether the stacks hang from the top, as those with leaves at the root do.
    pub hanging: bool,
}

/// Draws a tree that is not empty. Returns how many frames were too thin to be drawn.
pub fn write(tree: &Tree, caption: &Caption, out: &mut impl Write) -> io::Result<usize> {
    let least = tree.total().div_ceil(WIDTH_PX * DRAWN_PER_PX);
    let frames: Vec<String> = tree.labels().iter().map(annotated).collect();
    let mut lines = Vec::new();
    tree.walk(least, |path, weight| {
        let stack: Vec<&str> = path.iter().map(|&label| frames[label as usize].as_str()).collect();
        let stack = if stack.is_empty() { THIN_ROOTS.to_owned() } else { stack.join(";") };
        lines.push(format!("{stack} {weight}"));
        Ok::<(), io::Error>(())
    })?;
    let hidden = tree.frames_below(least);

    let mut palette = PaletteMap::default();
    let grey = Color { r: 230, g: 230, b: 230 };
    palette.insert("", grey);
    palette.insert(THIN_ROOTS, grey);
    for (label, frame) in tree.labels().iter().zip(&frames) {
        palette.insert(frame, color(label));
    }
    let mut options = Options::default();
    options.palette_map = Some(&mut palette);
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 255, g: 255, b: 255 }));
    options.title = printable(&caption.title).into_owned();
    options.subtitle = Some(match hidden {
        0 => printable(&caption.subtitle).into_owned(),
        hidden => format!("{}; {hidden} frames are too thin to be drawn", printable(&caption.subtitle)),
    });
    options.count_name = caption.unit.clone();
    options.name_type = String::new();
    options.direction = if caption.hanging { Direction::Inverted } else { Direction::Straight };
    // DejaVu Sans Mono, the widest of the usual fonts: text must not run out of its frame.
    options.font_width = 0.61;
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.image_width = Some(WIDTH_PX as usize);
    options.min_width = 0.0;
    options.flame_chart = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().rev().map(String::as_str), &mut svg)?;
    out.write_all(String::from_utf8_lossy(&svg).replacen("</style>", STYLE, 1).as_bytes())?;
    Ok(hidden)
}

fn annotated(label: &Label) -> String {
    let annotation = match label.class {
        Class::Kernel | Class::Copy => 'k',
        Class::Call | Class::Note => 'w',
        Class::Operator | Class::Native => 'i',
        Class::Python => 'j',
    };
    format!("{}_[{annotation}]", label.text)
}

/// A colour by class, its shade by the text, so that a frame looks the same in every graph.
fn color(label: &Label) -> Color {
    let (r, g, b) = match label.class {
        Class::Kernel => (232, 106, 64),
        Class::Copy => (196, 120, 200),
        Class::Call => (214, 176, 72),
        Class::Operator => (120, 190, 130),
        Class::Python => (112, 162, 214),
        Class::Native => (170, 190, 150),
        Class::Note => (190, 190, 190),
    };
    // FNV-1a: the same everywhere and in every version.
    let hash = label
        .text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let lighter = (hash >> 32) % 32;
    let shade = |part: u8| (u64::from(part) + (255 - u64::from(part)) * lighter / 64) as u8;
    Color { r: shade(r), g: shade(g), b: shade(b) }
}

//! A comparison as an SVG: for each row the exact time, and the interval in which 90 % of the profiles report it.
//!
//! Written by hand: a few rectangles and texts, in fonts that every browser has. Colours are from Okabe and Ito's
//! palette, which colour-blind people can tell apart, and each also differs in its shape or text.

use std::fmt::Write as _;

use super::report::shown;
use super::words::{clipped, labels, noun};
use super::{Comparison, Row};
use crate::human::{HumanCount, duration, percent};

const WIDTH: f64 = 1140.0;
const NAMES: f64 = 410.0;
const NOTES: f64 = 150.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 96.0;
const FOOT: f64 = 52.0;
/// Where times on a logarithmic axis begin; left of it is "not seen at all", which has no logarithm.
const NOTHING: f64 = 34.0;

const FONT: &str = "font-family=\"'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\"";
const INK: &str = "#1f2430";
const GREY: &str = "#6b7280";
const LINES: &str = "#e3e6eb";

/// How likely a profile is to miss a row: colour and words of the legend, by the least chance.
const CLASSES: [(f64, &str, &str); 4] = [
    (0.5, "#d55e00", "missed by most profiles"),
    (0.05, "#e69f00", "missed by 5 – 50 %"),
    (f64::MIN_POSITIVE, "#56b4e9", "missed by less than 5 %"),
    (0.0, "#0072b2", "never missed"),
];

/// Draws comparisons below each other.
pub fn draw(comparisons: &[Comparison]) -> String {
    let heights: Vec<f64> = comparisons.iter().map(|c| HEAD + ROW * shown(c).len() as f64 + FOOT).collect();
    let height: f64 = heights.iter().sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" {FONT} font-size=\"13\" fill=\"{INK}\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n"
    );
    let mut top = 0.0;
    for (comparison, height) in comparisons.iter().zip(heights) {
        let _ = writeln!(svg, "<g transform=\"translate(0 {top})\">");
        panel(&mut svg, comparison);
        svg.push_str("</g>\n");
        top += height;
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, comparison: &Comparison) {
    let rows = shown(comparison);
    let axis = Axis::over(&rows);
    let bottom = HEAD + ROW * rows.len() as f64;
    title(svg, comparison);
    ticks(svg, &axis, bottom);
    for ((index, row), label) in rows.iter().enumerate().zip(labels(comparison, &rows, 42)) {
        let y = HEAD + ROW * (index as f64 + 0.5);
        draw_row(svg, &axis, comparison, row, &label, y);
    }
    legend(svg, bottom + 40.0);
}

fn title(svg: &mut String, comparison: &Comparison) {
    let what = match comparison.sampler {
        super::Sampler::Gpu => "GPU",
        super::Sampler::Cpu => "host",
    };
    let window = if comparison.window_ns == comparison.span_ns {
        format!("the whole trace of {}", duration(comparison.span_ns as f64))
    } else {
        duration(comparison.window_ns as f64)
    };
    text(
        svg,
        20.0,
        30.0,
        "font-size=\"18\" font-weight=\"600\"",
        &format!("What a {} Hz profiler reports, and the exact {what} time", HumanCount(u64::from(comparison.hz))),
    );
    text(
        svg,
        20.0,
        52.0,
        &format!("fill=\"{GREY}\""),
        &format!(
            "{} by exact time, in profiles of {window}. On average {} of the time is credited to the wrong {}.",
            capitalised(noun(comparison.by, 2)),
            percent(comparison.share_error_mean),
            noun(comparison.by, 2),
        ),
    );
}

fn ticks(svg: &mut String, axis: &Axis, bottom: f64) {
    for (x, label) in axis.ticks() {
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\" stroke=\"{LINES}\"/>",
            HEAD - 6.0
        );
        text(svg, x, HEAD - 12.0, &format!("text-anchor=\"middle\" font-size=\"11\" fill=\"{GREY}\""), &label);
    }
    if axis.is_log {
        let style = format!("font-size=\"11\" font-style=\"italic\" fill=\"{GREY}\"");
        text(svg, WIDTH - NOTES + 26.0, HEAD - 12.0, &style, "logarithmic scale");
    }
}

fn draw_row(svg: &mut String, axis: &Axis, comparison: &Comparison, row: &Row, label: &str, y: f64) {
    let colour = CLASSES.iter().find(|(least, ..)| row.p_missed >= *least).map_or(GREY, |(_, colour, _)| colour);
    let exact = axis.x(row.window_exact_ns_mean);
    let (low, high) = (axis.x(row.sampled_ns_p05 as f64), axis.x(row.sampled_ns_p95 as f64));
    let stranger = row.is_false_friend(comparison.top);
    let details = format!(
        "{}\n{} calls, exact {} (#{}); 90 % of profiles report {} – {}; missed by {}",
        clipped(&row.key, 400),
        row.calls,
        duration(row.window_exact_ns_mean),
        row.exact_rank,
        duration(row.sampled_ns_p05 as f64),
        duration(row.sampled_ns_p95 as f64),
        percent(row.p_missed),
    );
    let _ = writeln!(svg, "<g><title>{}</title>", escaped(&details));
    let style = if stranger {
        format!("text-anchor=\"end\" font-style=\"italic\" fill=\"{GREY}\"")
    } else {
        "text-anchor=\"end\"".to_owned()
    };
    text(svg, NAMES - 14.0, y + 4.5, &style, &format!("{label}  {}", row.exact_rank));
    let _ = writeln!(
        svg,
        "<rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" rx=\"3\" fill=\"{colour}\" fill-opacity=\"0.85\"/>",
        y - 6.0,
        (high - low).max(3.0),
    );
    let _ = writeln!(
        svg,
        "<path d=\"M{exact:.1} {:.1}l4.5 9l-4.5 9l-4.5 -9z\" fill=\"{INK}\" stroke=\"#ffffff\" stroke-width=\"1.5\"/>",
        y - 9.0
    );
    let missed =
        if row.p_missed > 0.0 { format!("missed by {}", percent(row.p_missed)) } else { "never missed".to_owned() };
    // The interval may be narrower than the diamond, so its colour is here too.
    let _ = writeln!(svg, "<circle cx=\"{}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>", WIDTH - NOTES + 14.0);
    text(svg, WIDTH - NOTES + 26.0, y + 4.5, &format!("font-size=\"12\" fill=\"{GREY}\""), &missed);
    svg.push_str("</g>\n");
}

fn legend(svg: &mut String, y: f64) {
    let mut x = 26.0;
    let _ = writeln!(svg, "<path d=\"M{x} {:.1}l4.5 9l-4.5 9l-4.5 -9z\" fill=\"{INK}\"/>", y - 13.0);
    text(svg, x + 12.0, y, "font-size=\"12\"", "exact");
    x += 78.0;
    text(svg, x, y, "font-size=\"12\"", "what 90 % of profiles report:");
    x += 182.0;
    for (_, colour, words) in CLASSES.iter().rev() {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"26\" height=\"12\" rx=\"3\" fill=\"{colour}\" fill-opacity=\"0.85\"/>",
            y - 10.0
        );
        text(svg, x + 33.0, y, "font-size=\"12\"", words);
        x += 52.0 + words.chars().count() as f64 * 6.6;
    }
}

/// From times to places. Logarithmic where times span more than a factor of 30.
struct Axis {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Axis {
    fn over(rows: &[&Row]) -> Axis {
        let times = rows
            .iter()
            .flat_map(|row| [row.window_exact_ns_mean, row.sampled_ns_p05 as f64, row.sampled_ns_p95 as f64]);
        let (mut least, mut most) = (f64::INFINITY, 1.0_f64);
        for time in times.filter(|&time| time > 0.0) {
            (least, most) = (least.min(time), most.max(time));
        }
        let is_log = most / least > 30.0;
        Axis { least: least.min(most) * 0.8, most: most * 1.1, is_log }
    }

    fn x(&self, ns: f64) -> f64 {
        let room = WIDTH - NAMES - NOTES;
        if !self.is_log {
            return NAMES + room * ns / self.most;
        }
        if ns < self.least {
            return NAMES;
        }
        NAMES + NOTHING + (room - NOTHING) * (ns / self.least).ln() / (self.most / self.least).ln()
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = vec![(self.x(0.0), "0".to_owned())];
        if self.is_log {
            let decades = (self.least.log10().ceil() as i32)..=(self.most.log10().floor() as i32);
            let wide = decades.clone().count() < 3;
            let marks = decades.flat_map(|decade| {
                [1.0, 2.0, 5.0].into_iter().filter(move |&m| m == 1.0 || wide).map(move |m| m * 10f64.powi(decade))
            });
            ticks.extend(marks.filter(|&ns| ns < self.most).map(|ns| (self.x(ns), duration(ns))));
        } else {
            let rough = self.most / 5.0;
            let decade = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade).into_iter().find(|&s| s >= rough).unwrap_or(rough);
            ticks.extend(
                (1..)
                    .map(|i| f64::from(i) * step)
                    .take_while(|&ns| ns < self.most)
                    .map(|ns| (self.x(ns), duration(ns))),
            );
        }
        ticks
    }
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, content: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" xml:space=\"preserve\" {style}>{}</text>", escaped(content));
}

/// Names come from strangers: markup is text, and control characters, which XML forbids, are shown as a sign.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Options, compare};
    use crate::timeline::Timeline;
    use ktape_format::definition::{KernelName, Shape};
    use ktape_format::event::{Kernel, timing};
    use ktape_format::{Memory, Sink as _};

    #[test]
    fn names_from_strangers_do_not_break_the_picture() {
        let mut memory = Memory::default();
        for (hostile, duration_ns) in [("</text><script>&\"\u{1}", 20_000_000), ("seldom", 100)] {
            let Ok(name) = memory.string(hostile);
            let Ok(kernel) = memory.define(KernelName { name, module: 0 });
            let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
            let timing = timing::MEASURED;
            let Ok(()) = memory.event(Kernel { duration_ns, shape, timing, ..Kernel::default() });
        }
        let svg = draw(&compare(&Timeline::new(memory.definitions, memory.events), &Options::default()).unwrap());
        let elements = ["svg", "rect", "g", "title", "text", "line", "path", "circle"];
        for markup in svg.split('<').skip(1) {
            let name = markup.trim_start_matches('/').split(|c: char| !c.is_ascii_alphabetic()).next().unwrap();
            assert!(elements.contains(&name), "<{markup}");
        }
        assert!(!svg.contains('\u{1}'));
        assert!(svg.contains("&lt;script&gt;&amp;&quot;"));
    }
}

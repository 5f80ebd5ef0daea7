//! A recording: a directory of segments, each a complete tape, and of their rollups.
//!
//! The names alone say what counts. Segment 17 is `NAME-20261130T101500Z-000017.ktape`, its rollup the same with
//! `.rollup.ktape`; a rollup of several is `NAME-20261130T000000Z-000001-000144.rollup.ktape`, named by the beginning of the
//! first. Where a segment's tape is there, it counts, else its rollup; whatever lies within the range of a rollup of several
//! counts no more, so that one can be put in the place of many without an instant in which something counts twice or not at all.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// How a tape's name ends.
const TAPE: &str = ".ktape";
/// How a rollup's name ends.
const ROLLUP: &str = ".rollup.ktape";

/// What the name of a segment, or of a rollup of several, says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// What the recording is called.
    pub recording: String,
    /// When the first segment began, in seconds since 1970-01-01 UTC.
    pub begin_s: i64,
    /// The number of the first segment, and of the last.
    pub segments: (u64, u64),
}

impl Name {
    /// The name of the segment's tape.
    pub fn tape(&self) -> String {
        format!("{}{TAPE}", self.stem())
    }

    /// The name of the rollup.
    pub fn rollup(&self) -> String {
        format!("{}{ROLLUP}", self.stem())
    }

    fn stem(&self) -> String {
        let (first, last) = self.segments;
        let last = if first == last { String::new() } else { format!("-{last:06}") };
        format!("{}-{}-{first:06}{last}", self.recording, time(self.begin_s))
    }

    /// The day on which the first segment began, counted from 1970-01-01.
    pub fn day(&self) -> i64 {
        self.begin_s.div_euclid(DAY_S)
    }

    /// Year and month of that.
    pub fn month(&self) -> (i64, u32) {
        let (year, month, _) = date(self.day());
        (year, month)
    }

    /// Reads a stem.
    fn of(stem: &str) -> Option<Name> {
        let (rest, last) = stem.rsplit_once('-')?;
        let last = number(last)?;
        let (before, begin) = rest.rsplit_once('-')?;
        if let Some(begin_s) = read_time(begin) {
            return Some(Name { recording: before.to_owned(), begin_s, segments: (last, last) });
        }
        let first = number(begin).filter(|first| *first < last)?;
        let (recording, begin) = before.rsplit_once('-')?;
        Some(Name { recording: recording.to_owned(), begin_s: read_time(begin)?, segments: (first, last) })
    }
}

/// A segment, or several that only a rollup is left of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What its files are called.
    pub name: Name,
    /// Its tape, if that is still there.
    pub tape: Option<PathBuf>,
    /// Its rollup, if there is one.
    pub rollup: Option<PathBuf>,
}

/// What is in the directory of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// Files that count no more, as a rollup of several has what they had.
    pub superseded: Vec<PathBuf>,
}

impl Recording {
    /// Looks into a directory. Files of other names are none of a recording's.
    pub fn list(directory: &Path) -> io::Result<Recording> {
        let mut by_range: BTreeMap<(u64, std::cmp::Reverse<u64>, String), Segment> = BTreeMap::new();
        for entry in directory.read_dir()? {
            let path = entry?.path();
            let Some(file) = path.file_name().and_then(OsStr::to_str) else { continue };
            let (stem, is_rollup) = match (file.strip_suffix(ROLLUP), file.strip_suffix(TAPE)) {
                (Some(stem), _) => (stem, true),
                (None, Some(stem)) => (stem, false),
                (None, None) => continue,
            };
            let Some(name) = Name::of(stem) else { continue };
            let (first, last) = name.segments;
            if !is_rollup && first != last {
                continue;
            }
            let segment = by_range.entry((first, std::cmp::Reverse(last), name.recording.clone()));
            let segment = segment.or_insert(Segment { name, tape: None, rollup: None });
            *(if is_rollup { &mut segment.rollup } else { &mut segment.tape }) = Some(path);
        }
        let mut recording = Recording::default();
        // Up to where a rollup of several has what there was, by the name of the recording: files of another speak of their own.
        let mut covered: BTreeMap<String, u64> = BTreeMap::new();
        for segment in by_range.into_values() {
            let (_, last) = segment.name.segments;
            if covered.get(&segment.name.recording).is_some_and(|&covered| last <= covered) {
                recording.superseded.extend(segment.tape.into_iter().chain(segment.rollup));
                continue;
            }
            let (first, last) = segment.name.segments;
            if first != last {
                covered.insert(segment.name.recording.clone(), last);
            }
            recording.segments.push(segment);
        }
        Ok(recording)
    }

    /// The number of the last segment; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.segments.iter().map(|segment| segment.name.segments.1).max().unwrap_or(0)
    }
}

const DAY_S: i64 = 86_400;

fn number(text: &str) -> Option<u64> {
    let is_number = text.len() >= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// As `20261130T101500Z`.
fn time(unix_s: i64) -> String {
    let (year, month, day) = date(unix_s.div_euclid(DAY_S));
    let second = unix_s.rem_euclid(DAY_S);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

fn read_time(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let is_time = bytes.len() == 16 && bytes[8] == b'T' && bytes[15] == b'Z';
    let digits = |from: usize, to: usize| {
        let part = text.get(from..to).filter(|part| part.bytes().all(|byte| byte.is_ascii_digit()))?;
        part.parse::<i64>().ok()
    };
    if !is_time {
        return None;
    }
    let days = days(digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    Some(days * DAY_S + digits(9, 11)? * 3600 + digits(11, 13)? * 60 + digits(13, 15)?)
}

/// Year, month and day of a day counted from 1970-01-01. In years that begin in March the leap day comes last, and the
/// lengths of the months before it repeat every five.
fn date(day: i64) -> (i64, u32, u32) {
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month as u32, (of_year - (153 * from_march + 2) / 5 + 1) as u32)
}

/// The other way round.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (segments, begin_s, tape) in [
            ((17, 17), 1_796_033_700, "a-b-20261130T101500Z-000017"),
            ((1, 144), 951_782_400, "a-b-20000229T000000Z-000001-000144"),
            ((1_234_567, 1_234_567), 0, "a-b-19700101T000000Z-1234567"),
        ] {
            let name = Name { recording: "a-b".to_owned(), begin_s, segments };
            assert_eq!(name.stem(), tape);
            assert_eq!(Name::of(tape), Some(name));
        }
        for foreign in ["capture-python-4711", "a-20261130T101500Z-17", "a-20261130T101500Z-000017-000016", "x", ""] {
            assert_eq!(Name::of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_is_itself() {
        for day in -200_000..200_000 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month.into(), of_month.into()), day);
        }
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(-1), (1969, 12, 31));
    }

    #[test]
    fn what_a_rollup_of_several_has_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        let name = |first, last| Name { recording: "r".to_owned(), begin_s: 86_400, segments: (first, last) };
        for file in [
            name(1, 1).rollup(),
            name(2, 2).tape(),
            name(2, 2).rollup(),
            name(1, 3).rollup(),
            name(4, 4).rollup(),
            name(5, 5).tape(),
            "notes.txt".to_owned(),
            "other.ktape".to_owned(),
        ] {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let recording = Recording::list(folder.path()).unwrap();
        let counts: Vec<_> = recording
            .segments
            .iter()
            .map(|segment| (segment.name.segments, segment.tape.is_some(), segment.rollup.is_some()))
            .collect();
        assert_eq!(counts, [((1, 3), false, true), ((4, 4), false, true), ((5, 5), true, false)]);
        assert_eq!(recording.superseded.len(), 3);
        assert_eq!(recording.last(), 5);
        // What was copied in from another recording says nothing of this one.
        let other = Name { recording: "other".to_owned(), ..name(1, 900) };
        std::fs::write(folder.path().join(other.rollup()), "").unwrap();
        let recording = Recording::list(folder.path()).unwrap();
        assert_eq!((recording.segments.len(), recording.superseded.len()), (4, 3));
    }
}

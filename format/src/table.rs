//! A table is a set of equal-length columns; a row is one index into all of them.
//!
//! Everything on a tape is a row of some table: an event ([`crate::event`]) or a definition ([`crate::definition`]).
//! `tables!` writes, from one declaration, the row (`Launch`), its columns in memory (`LaunchTable`) and the
//! description ([`ColumnSpec`]) that the codec, the dump and `docs/format.md` share. A new kind of event is a new
//! table, a new field a new column at the end: readers skip the ones that they do not know and read absent ones as 0.

use std::ops::Range;

/// The type of a column's values in memory. On the tape every value is an unsigned integer of at most 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// Unsigned, 1 byte.
    U8,
    /// Unsigned, 2 bytes.
    U16,
    /// Unsigned, 4 bytes.
    U32,
    /// Unsigned, 8 bytes.
    U64,
    /// Two's complement, 4 bytes.
    I32,
    /// Two's complement, 8 bytes.
    I64,
    /// IEEE 754 double.
    F64,
}

impl Scalar {
    /// How many bytes a value takes in a staged record (see `docs/format.md`, "Staging").
    pub const fn bytes(self) -> usize {
        match self {
            Scalar::U8 => 1,
            Scalar::U16 => 2,
            Scalar::U32 | Scalar::I32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }
}

/// What a column's values are compared with before they are written (the smaller the difference, the fewer bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Predictor {
    /// The smallest value of the block: for ids, sizes and durations, whose repeating patterns zstd finds by itself.
    Least,
    /// The value before: for times and counters, which grow.
    Previous,
    /// The end of the row before it on the same stream, for device work, which queues behind its stream.
    /// Names the columns that hold the stream and the duration.
    StreamEnd {
        /// Index of the column whose value says which queue a row is on.
        stream: usize,
        /// Index of the column whose value, added to this one, is the row's end.
        duration: usize,
    },
    /// The mean of the rows before with the same key, for durations, which a kernel or a function repeats; or the
    /// smallest value, where that is shorter. Names the column that holds the key.
    Key(usize),
}

impl Predictor {
    /// The columns that it looks at.
    pub(crate) fn needs(self) -> [Option<usize>; 2] {
        match self {
            Predictor::Least | Predictor::Previous => [None, None],
            Predictor::StreamEnd { stream, duration } => [Some(stream), Some(duration)],
            Predictor::Key(key) => [Some(key), None],
        }
    }
}

/// What the numbers of a column refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refers {
    /// To nothing: they are quantities.
    Nothing,
    /// A row of the definition table of this name; 0 is "none".
    To(DefinitionKind),
    /// A code, whose meaning the named enumeration gives.
    Code(&'static [&'static str]),
}

/// The definition tables, by the number that stands on the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
#[expect(missing_docs, reason = "each is described at its row type in `definition`")]
pub enum DefinitionKind {
    String = 0x100,
    Frame = 0x101,
    Stack = 0x102,
    Kernel = 0x103,
    Shape = 0x104,
    Function = 0x105,
    Process = 0x106,
    Thread = 0x107,
    Device = 0x108,
    Context = 0x109,
    Stream = 0x10a,
    Graph = 0x10b,
    Counter = 0x10c,
    Property = 0x10d,
    GraphNode = 0x10e,
}

/// One column as declared.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSpec {
    /// The field's name, with its unit.
    pub name: &'static str,
    /// The field's type.
    pub scalar: Scalar,
    /// How the codec predicts it.
    pub predictor: Predictor,
    /// What its numbers refer to.
    pub refers: Refers,
}

/// Looks at a column whose type is not known where it is named.
pub trait ColumnReader {
    /// What it finds.
    type Out;
    /// Called by [`Table::read_column`] with the column's values.
    fn read<T: Value>(self, values: &[T]) -> Self::Out;
}

/// Changes a column whose type is not known where it is named.
pub trait ColumnWriter {
    /// What it tells.
    type Out;
    /// Called by [`Table::write_column`] with the column, whose length is to become that of the others.
    fn write<T: Value>(self, values: &mut Vec<T>) -> Self::Out;
}

/// A value that a column can hold; converts to and from the tape's unsigned integers without loss.
pub trait Value: Copy {
    /// The type, for [`ColumnSpec`].
    const SCALAR: Scalar;
    /// As the codec sees it.
    fn to_bits(self) -> u64;
    /// Back; bits beyond the type's width are cut off, as they can only come from a newer or damaged tape.
    fn from_bits(bits: u64) -> Self;
    /// Whether it is the same, bit for bit.
    fn is_same(self, other: Self) -> bool;
}

macro_rules! value {
    ($($type:ty => $scalar:ident, $to:expr, $from:expr, $raw:expr;)*) => {$(
        impl Value for $type {
            const SCALAR: Scalar = Scalar::$scalar;
            #[inline]
            fn to_bits(self) -> u64 { ($to)(self) }
            #[inline]
            fn from_bits(bits: u64) -> Self { ($from)(bits) }
            #[inline]
            fn is_same(self, other: Self) -> bool { ($raw)(self) == ($raw)(other) }
        }
    )*};
}
value! {
    u8 => U8, u64::from, |b| b as u8, |v| v;
    u16 => U16, u64::from, |b| b as u16, |v| v;
    u32 => U32, u64::from, |b| b as u32, |v| v;
    u64 => U64, |v| v, |b| b, |v| v;
    i32 => I32, |v: i32| u64::from(v as u32), |b| b as i32, |v| v;
    i64 => I64, |v: i64| v as u64, |b| b as i64, |v| v;
    f64 => F64, f64::to_bits, f64::from_bits, f64::to_bits;
}

/// A row of some table.
pub trait Row: Copy + Default + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// The table's number on the tape. Events are below 0x100, definitions from there on.
    const KIND: u16;
    /// The table's name in `info`, `dump` and the documentation.
    const NAME: &'static str;
    /// The columns in declaration order; a column's index is its number on the tape.
    const COLUMNS: &'static [ColumnSpec];
    /// How many bytes a staged record of this kind takes.
    const STAGED_BYTES: usize;
    /// The same rows as columns.
    type Table: Table<Row = Self>;

    /// The value of a column, as the codec sees it.
    fn get(&self, column: usize) -> u64;
    /// Sets a column. A column that this version does not know is ignored.
    fn set(&mut self, column: usize, bits: u64);
    /// Packs the row, little-endian, columns in order, no padding between them, into as many words as
    /// [`Row::STAGED_BYTES`] need. Returns their fold (see `docs/format.md`, "Staging").
    fn stage(&self, out: &mut [u64]) -> u64;
    /// Reads what [`Row::stage`] wrote. `staged` has exactly [`Row::STAGED_BYTES`].
    fn unstage(staged: &[u8]) -> Self;
    /// Replaces each id by what `by` makes of it and its table; 0, which is none, stays. The subject of a property is not
    /// among them, as its column does not say of which table it is. Stops at the first error.
    fn map_references<E>(&mut self, by: impl FnMut(DefinitionKind, u32) -> Result<u32, E>) -> Result<(), E>;
}

/// Rows as columns.
pub trait Table: Default + Clone + Send + Sync + 'static {
    /// The row type.
    type Row: Row;
    /// How many rows.
    fn len(&self) -> usize;
    /// Whether there is no row.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Adds a row at the end.
    fn push(&mut self, row: Self::Row);
    /// Row `index`, which must be below [`Table::len`].
    fn row(&self, index: usize) -> Self::Row;
    /// All rows in order.
    fn rows(&self) -> impl Iterator<Item = Self::Row> + '_ {
        (0..self.len()).map(|index| self.row(index))
    }
    /// Moves all rows of `other` behind these.
    fn append(&mut self, other: &mut Self);
    /// Writes these rows of column `index` as the codec sees them into `out`, which is cleared first.
    fn column_bits(&self, index: usize, rows: Range<usize>, out: &mut Vec<u64>);
    /// Removes all rows and keeps the memory for the next ones.
    fn clear(&mut self);
    /// Shows column `index` to `reader`; `None` if there is none.
    fn read_column<R: ColumnReader>(&self, index: usize, reader: R) -> Option<R::Out>;
    /// Hands column `index` to `writer`; `None` if there is none. The caller sees to it that all columns get one length.
    fn write_column<W: ColumnWriter>(&mut self, index: usize, writer: W) -> Option<W::Out>;
    /// Exchanges column `index` with that of `other`.
    fn swap_column(&mut self, index: usize, other: &mut Self);
    /// Keeps the named rows, in the order named: row `i` of the result is row `order[i]` of this table.
    fn gather(&mut self, order: &[u32]);
}

/// Declares tables: rows, columns and descriptions. See the module's head.
macro_rules! tables {
    ($(
        $(#[$meta:meta])*
        $row:ident / $table:ident, $name:literal = $kind:expr; {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty => $predictor:expr, $refers:expr; )*
        }
    )*) => {$(
        $(#[$meta])*
        // In memory as on the tape, so that staging a row copies its words.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $row { $( $(#[$field_meta])* pub $field: $type, )* }

        #[doc = concat!("The columns of [`", stringify!($row), "`] rows, all of one length.")]
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $table {
            $( #[doc = concat!("`", stringify!($field), "` of every [`", stringify!($row), "`].")] pub $field: Vec<$type>, )*
        }

        impl $crate::table::Row for $row {
            const KIND: u16 = $kind as u16;
            const NAME: &'static str = $name;
            const COLUMNS: &'static [$crate::table::ColumnSpec] = &[$(
                $crate::table::ColumnSpec {
                    name: stringify!($field),
                    scalar: <$type as $crate::table::Value>::SCALAR,
                    predictor: $predictor,
                    refers: $refers,
                },
            )*];
            const STAGED_BYTES: usize = 0 $( + <$type as $crate::table::Value>::SCALAR.bytes() )*;
            type Table = $table;

            fn get(&self, column: usize) -> u64 {
                let mut index = 0..;
                $( if index.next() == Some(column) { return $crate::table::Value::to_bits(self.$field); } )*
                0
            }
            fn set(&mut self, column: usize, bits: u64) {
                let mut index = 0..;
                $( if index.next() == Some(column) { self.$field = $crate::table::Value::from_bits(bits); } )*
            }
            #[inline]
            fn stage(&self, out: &mut [u64]) -> u64 {
                const WORDS: usize = <$row as $crate::table::Row>::STAGED_BYTES.div_ceil(8);
                let mut words = [0_u64; WORDS];
                let mut at = 0;
                $( {
                    let (word, shift) = (at / 8, at % 8 * 8);
                    let bits = $crate::table::Value::to_bits(self.$field);
                    words[word] |= bits << shift;
                    at += <$type as $crate::table::Value>::SCALAR.bytes();
                    if word < (at - 1) / 8 {
                        words[word + 1] |= bits >> (64 - shift);
                    }
                } )*
                debug_assert_eq!(at, Self::STAGED_BYTES);
                let out: &mut [u64; WORDS] = out.try_into().expect("as many words as the row needs");
                *out = words.map(u64::to_le);
                words.iter().enumerate().fold(0, |fold, (index, &word)| $crate::staging::fold_in(fold, index, word))
            }
            #[inline]
            fn unstage(staged: &[u8]) -> Self {
                let mut rest = staged;
                let row = $row { $( $field: {
                    let (bytes, tail) = rest.split_at(size_of::<$type>());
                    rest = tail;
                    <$type>::from_le_bytes(bytes.try_into().expect("split at its size"))
                }, )* };
                debug_assert!(rest.is_empty());
                row
            }
            #[inline]
            fn map_references<Error>(
                &mut self,
                mut by: impl FnMut($crate::table::DefinitionKind, u32) -> Result<u32, Error>,
            ) -> Result<(), Error> {
                // Some rows refer to nothing.
                let _ = &mut by;
                $( if let $crate::table::Refers::To(kind) = const { $refers }
                    && let id @ 1.. = $crate::table::Value::to_bits(self.$field)
                {
                    self.$field = $crate::table::Value::from_bits(u64::from(by(kind, id as u32)?));
                } )*
                Ok(())
            }
        }

        impl $crate::table::Table for $table {
            type Row = $row;
            fn len(&self) -> usize { [$( self.$field.len() ),*][0] }
            fn push(&mut self, row: $row) { $( self.$field.push(row.$field); )* }
            fn row(&self, index: usize) -> $row { $row { $( $field: self.$field[index], )* } }
            fn append(&mut self, other: &mut Self) { $( self.$field.append(&mut other.$field); )* }
            fn column_bits(&self, index: usize, rows: std::ops::Range<usize>, out: &mut Vec<u64>) {
                out.clear();
                let mut column = 0..;
                $( if column.next() == Some(index) {
                    out.extend(self.$field[rows.clone()].iter().map(|&value| $crate::table::Value::to_bits(value)));
                } )*
            }
            fn clear(&mut self) { $( self.$field.clear(); )* }
            fn read_column<R: $crate::table::ColumnReader>(&self, index: usize, reader: R) -> Option<R::Out> {
                let mut column = 0..;
                $( if column.next() == Some(index) { return Some(reader.read(&self.$field)); } )*
                None
            }
            fn write_column<W: $crate::table::ColumnWriter>(&mut self, index: usize, writer: W) -> Option<W::Out> {
                let mut column = 0..;
                $( if column.next() == Some(index) { return Some(writer.write(&mut self.$field)); } )*
                None
            }
            fn swap_column(&mut self, index: usize, other: &mut Self) {
                let mut column = 0..;
                $( if column.next() == Some(index) { std::mem::swap(&mut self.$field, &mut other.$field); } )*
            }
            fn gather(&mut self, order: &[u32]) {
                $( self.$field = order.iter().map(|&row| self.$field[row as usize]).collect(); )*
            }
        }
    )*};
}
pub(crate) use tables;

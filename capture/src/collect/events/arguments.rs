//! What a call was given, as its record has it.

use ktape_ebpf::wire::{Call, STACK_WORDS};

use crate::probes::functions::Argument;

/// A call's words.
pub(super) struct Arguments<'a> {
    pub(super) call: Call,
    pub(super) words: &'a [u64],
    /// The structure, string or lists that arguments point to; empty if they could not be read.
    pub(super) memory: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(super) fn new(call: Call, words: &'a [u64], memory: &'a [u8]) -> Arguments<'a> {
        debug_assert!(words.len() <= STACK_WORDS);
        Arguments { call, words, memory }
    }

    pub(super) fn word(&self, argument: Argument) -> u64 {
        let index = usize::from(argument);
        self.call.registers.get(index).or_else(|| self.words.get(index - 6)).copied().unwrap_or(0)
    }

    pub(super) fn half(&self, argument: Argument) -> u32 {
        self.word(argument) as u32
    }

    /// A word of the structure.
    pub(super) fn memory_word(&self, offset: usize) -> u64 {
        self.memory.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |&bytes| u64::from_le_bytes(bytes))
    }

    pub(super) fn memory_half(&self, offset: usize) -> u32 {
        self.memory_word(offset) as u32
    }

    /// The string, without its end.
    pub(super) fn name(&self) -> &[u8] {
        self.memory.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

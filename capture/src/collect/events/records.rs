//! The records, told apart: whose each is, and what of the collector takes its kind.
//!
//! They are bytes of a ring buffer or a mapped file, and each is read as its kind says, if it is long enough. Calls go on in
//! `call_and_return.rs`, the others where what they tell is kept.

use std::mem::offset_of;

use ktape_ebpf::inside::{self, Clocks, Correlated, FunctionName, Missing, Ran, RangeTold, Text};
use ktape_ebpf::wire::{
    Call, CodeRecord, Lifecycle, ListsCall, MemoryCall, NAME_BYTES, NativeBody, OffCpu, Plain as _, RangeStack, Return,
    Sample, StackBody, StackCall, TaskBody, TextPiece, kind,
};
use ktape_format::{Sink, event};

use super::super::inside::device::device;
use super::arguments::Arguments;
use super::stacks::Large as _;
use super::{Collector, Notice, lower, upper};

impl Collector {
    /// Takes one record of the ring buffer. One that is too short, or of an unknown kind, is of programs of another version,
    /// which the loader does not let happen; it is passed over.
    pub fn take<S: Sink>(&mut self, record: &[u8], sink: &mut S) -> Result<Option<Notice>, S::Error> {
        let Some(&kind) = record.first_chunk::<2>() else { return Ok(None) };
        let kind = u16::from_ne_bytes(kind).into();
        if kind != kind::LIFECYCLE
            && let Some(pid) = pid_of(kind, record)
            && !self.processes.contains_key(&pid)
        {
            return Ok(Some(Notice::Unknown(pid)));
        }
        match kind {
            kind::CALL => {
                if let Some(call) = Call::read(record) {
                    let arguments = Arguments::new(call, &[], &[]);
                    self.call(&arguments, sink)?;
                }
            }
            kind::STACK_CALL => {
                if let Some(StackCall { call, words }) = StackCall::read(record) {
                    self.call(&Arguments::new(call, &words, &[]), sink)?;
                }
            }
            kind::MEMORY_CALL => {
                if let Some(MemoryCall { call, bytes, memory }) = MemoryCall::read(record) {
                    let memory = memory.get(..bytes as usize).unwrap_or_default();
                    self.call(&Arguments::new(call, &[], memory), sink)?;
                }
            }
            kind::LISTS_CALL => {
                if let Some(ListsCall { call, words, bytes, memory }) = ListsCall::read(record) {
                    let memory = if bytes == 0 { &[][..] } else { &memory };
                    self.call(&Arguments::new(call, &words, memory), sink)?;
                }
            }
            kind::NAMED_CALL => {
                let length = record.get(size_of::<Call>()..).and_then(|rest| rest.first_chunk::<8>());
                if let (Some(call), Some(&length)) = (Call::read(record), length) {
                    let name = &record[size_of::<Call>() + 8..];
                    let length = (u64::from_ne_bytes(length) as usize).min(NAME_BYTES).min(name.len());
                    self.call(&Arguments::new(call, &[], &name[..length]), sink)?;
                }
            }
            kind::RETURN => {
                if let Some(returned) = Return::read(record) {
                    self.returned(&returned, sink)?;
                }
            }
            kind::STACK_BODY => {
                if let Some(body) = StackBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    let frames = &record[size_of::<StackBody>()..];
                    let added = process.stacks.add(&body, frames, &mut self.builds, sink)?;
                    if added.is_left_out {
                        self.left_out.push((process.pid, body.stack));
                    }
                    self.gaps.unknown_frames += added.unknown_frames;
                    self.gaps.incomplete_stacks += u64::from(added.is_incomplete);
                }
            }
            kind::NATIVE_BODY => {
                if let Some(body) = NativeBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    process.stacks.add_native(&body, &record[size_of::<NativeBody>()..]);
                }
            }
            kind::CODE => {
                if let Some(code) = CodeRecord::of(record)
                    && let Some(process) = self.processes.get_mut(&upper(code.pid_tid))
                {
                    let pid = process.pid;
                    let string_type = process.stacks.add_code(lower(code.pid_tid), code.rotation, &code.body);
                    return Ok(string_type.map(|string_type| Notice::TaskRunner {
                        pid,
                        code: code.body.code,
                        string_type,
                    }));
                }
            }
            kind::TEXT_PIECE => {
                if let Some(piece) = TextPiece::of(record)
                    && let Some(process) = self.processes.get_mut(&upper(piece.pid_tid))
                {
                    process.stacks.add_piece(piece);
                }
            }
            kind::TASK_BODY => {
                if let Some(body) = TaskBody::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(body.pid_tid))
                {
                    let is_enough = process.stacks.add_task(&body);
                    return Ok(is_enough.then_some(Notice::ManyTasks(process.pid)));
                }
            }
            kind::SAMPLE => {
                if let Some(sample) = Sample::read(record) {
                    self.sample(&sample, sink)?;
                }
            }
            kind::OFF_CPU => {
                if let Some(off_cpu) = OffCpu::read(record) {
                    self.off_cpu(&off_cpu, sink)?;
                }
            }
            kind::LIFECYCLE => {
                if let Some(life) = Lifecycle::read(record) {
                    return self.lifecycle(&life, sink);
                }
            }
            kind::RANGE_STACK => {
                if let Some(told) = RangeStack::read(record) {
                    self.range_stack(&told, sink)?;
                }
            }
            inside::kind::CORRELATED => {
                if let Some(correlated) = Correlated::read(record) {
                    self.correlated(&correlated, sink)?;
                }
            }
            inside::kind::FUNCTION_NAME => {
                if let Some(name) = FunctionName::read(record)
                    && let Some(process) = self.processes.get_mut(&upper(name.pid_tid))
                {
                    let text = record.get(size_of::<FunctionName>()..).unwrap_or_default();
                    let text = text.get(..name.bytes as usize).unwrap_or(text);
                    process.kernels.told(name.handle, &String::from_utf8_lossy(text), sink)?;
                }
            }
            inside::kind::CLOCKS => {
                if let Some(clocks) = Clocks::read(record) {
                    let (clock, device) = match clocks.device.checked_sub(1) {
                        Some(index) => (event::clock_kind::DEVICE, sink.define(device(index))?),
                        None => (event::clock_kind::CUPTI, 0),
                    };
                    sink.event(event::ClockPair {
                        start_ns: clocks.monotonic_ns as i64,
                        clock,
                        value_ns: clocks.other_ns as i64,
                        uncertainty_ns: clocks.uncertainty_ns,
                        device,
                    })?;
                }
            }
            inside::kind::MISSING => {
                if let Some(missing) = Missing::read(record) {
                    self.missing(&missing, sink)?;
                }
            }
            _ => {}
        }
        Ok(None)
    }
}

/// Whose a record is: where that stands depends on its kind.
pub(in super::super) fn pid_of(kind: u32, record: &[u8]) -> Option<u32> {
    let offset = match kind {
        kind::STACK_BODY => offset_of!(StackBody, pid_tid),
        kind::NATIVE_BODY => offset_of!(NativeBody, pid_tid),
        kind::CODE => offset_of!(CodeRecord, pid_tid),
        kind::TASK_BODY => offset_of!(TaskBody, pid_tid),
        kind::TEXT_PIECE => offset_of!(TextPiece, pid_tid),
        kind::RETURN => offset_of!(Return, pid_tid),
        kind::SAMPLE => offset_of!(Sample, pid_tid),
        kind::OFF_CPU => offset_of!(OffCpu, pid_tid),
        kind::RANGE_STACK => offset_of!(RangeStack, pid_tid),
        inside::kind::CORRELATED => offset_of!(Correlated, pid_tid),
        inside::kind::TEXT => offset_of!(Text, pid_tid),
        inside::kind::KERNEL_RAN | inside::kind::COPY_RAN | inside::kind::SET_RAN | inside::kind::KERNEL_TIMED => {
            offset_of!(Ran, pid_tid)
        }
        inside::kind::FUNCTION_NAME => offset_of!(FunctionName, pid_tid),
        inside::kind::CLOCKS => offset_of!(Clocks, pid_tid),
        inside::kind::MISSING => offset_of!(Missing, pid_tid),
        inside::kind::RANGE => offset_of!(RangeTold, pid_tid),
        _ => offset_of!(Call, pid_tid),
    };
    let word = record.get(offset..)?.first_chunk::<8>()?;
    Some(upper(u64::from_ne_bytes(*word)))
}

//! A call's record, and its return's: which thread's it is, whether it is in the scope, and what stack it has.
//!
//! Here is what all calls have in common, in the order in which it has to be decided; what a call of each function means, `calls.rs`
//! knows. An event is written here at once, or waits on its thread (`thread.rs`) for the return.

use ktape_ebpf::wire::tally::NO_CPU;
use ktape_ebpf::wire::{Return, STACK_LEFT_OUT, STACK_TOO_EARLY, STACK_UNREADABLE};
use ktape_format::Sink;
use ktape_format::definition::{Function, api_domain};
use ktape_format::event::Launch;

use super::super::inside::device::{Called, What};
use super::account::{Fate, Key};
use super::arguments::Arguments;
use super::calls::Within;
use super::gaps::count_stackless;
use super::of_device::{Teller, teller};
use super::open::{End, Open};
use super::thread::{Pending, Thread};
use super::{Collector, DeviceTimes, lower, scope, stacks, upper};

impl Collector {
    /// Takes a call; it is an event at once, or when it returns.
    pub(super) fn call<S: Sink>(&mut self, arguments: &Arguments<'_>, sink: &mut S) -> Result<(), S::Error> {
        let call = &arguments.call;
        let index = call.function as usize;
        let Some(function) = self.functions.get(index) else { return Ok(()) };
        self.taken[index].calls += 1;
        let Some(process) = self.processes.get_mut(&upper(call.pid_tid)) else { return Ok(()) };
        process.calls += 1;
        let key = Key::new(call.time_ns, call.cpu, function.meaning.table());
        // What is captured becomes part of a graph, whoever launches that.
        let may_be_captured = process.objects.graphs.captures.are_under_way();
        let is_outside = self.scope.is_by_stack()
            && scope::is_of_launch(function.meaning)
            && (matches!(call.stack, 0 | STACK_TOO_EARLY) || process.stacks.is_left_out(call.stack));
        if is_outside && !may_be_captured {
            self.out_of_scope[index] += 1;
            // It may have had a stack that would be in the scope.
            if matches!(call.stack, 0 | STACK_TOO_EARLY) {
                count_stackless(call.stack, &process.stacks, &mut process.stackless, &mut self.gaps);
            }
            if function.meaning.is_event() {
                self.account.settle(key, Fate::LeftOut);
                let has_return = function.meaning.wants_return(self.launch_durations);
                if has_return || self.device_times != DeviceTimes::None {
                    // What comes of it is left out too.
                    let process_id = (process.id, process.pid);
                    let thread = Thread::of(&mut process.threads, process_id, lower(call.pid_tid), sink)?;
                    thread.leave_out(call, key, has_return);
                }
            }
            return Ok(());
        }
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), lower(call.pid_tid), sink)?;
        // What is not below a call on the stack is not within it: that one has ended without being seen to.
        thread.last = None;
        while let Some(abandoned) = thread.take_abandoned(call.stack_pointer) {
            self.gaps.calls_without_return += 1;
            let mut teller = teller!(self, process);
            self.events += teller.give_up(abandoned, sink)?;
        }
        if self.function_ids[index] == 0 {
            self.function_ids[index] = define_function(&function.symbol, sink)?;
        }
        let stack = match call.stack {
            0 | STACK_TOO_EARLY => {
                if function.meaning.is_event() {
                    count_stackless(call.stack, &process.stacks, &mut process.stackless, &mut self.gaps);
                }
                0
            }
            STACK_UNREADABLE => {
                // The programs count theirs themselves.
                self.unreadable_stacks += u64::from(call.cpu == NO_CPU);
                0
            }
            STACK_LEFT_OUT => {
                self.gaps.stacks_left_out += 1;
                stacks::left_out(&mut self.stack_left_out, sink)?
            }
            hash => process.stacks.id(hash).unwrap_or_else(|| {
                self.gaps.unknown_stacks += 1;
                0
            }),
        };
        thread.calls += 1;
        let mut within = Within {
            function,
            function_id: self.function_ids[index],
            stack,
            thread,
            kernels: &mut process.kernels,
            objects: &mut process.objects,
            correlation: &mut process.correlation,
            gaps: &mut self.gaps,
            left_out: None,
        };
        let mut open = within.open(arguments, sink)?;
        let is_wanted = |launch: &Launch| {
            let is_kernel_outside = within.left_out.as_ref().is_some_and(|shapes| shapes.contains(&launch.shape));
            within.is_captured(launch.stream) || !(is_outside || is_kernel_outside)
        };
        let is_left_out = scope::keep_only(&mut open, is_wanted);
        if is_left_out {
            self.out_of_scope[index] += 1;
            self.account.settle(key, Fate::LeftOut);
            open = Open::Nothing;
        }
        if !is_left_out && matches!(open, Open::Nothing) {
            return Ok(());
        }
        let has_return = function.meaning.wants_return(self.launch_durations);
        let open = within.captured(arguments, open, has_return, sink)?;
        let is_told_of = |called: &Called| match self.device_times {
            DeviceTimes::None => false,
            DeviceTimes::OfKernels => matches!(called.what, What::Launch { .. }),
            DeviceTimes::OfAll => true,
        };
        thread.last = match is_left_out {
            true => Some(Called::left_out(call.time_ns)),
            false => open.called(process.kernels.last).filter(is_told_of),
        };
        if has_return {
            thread.push(Pending {
                function: call.function,
                stack_pointer: call.stack_pointer,
                start_ns: call.time_ns as i64,
                key,
                cupti: 0,
                open,
            });
        } else {
            let mut teller = teller!(self, process);
            self.events += teller.tell(key, 0, open, sink)?;
        }
        Ok(())
    }

    /// Takes a return; with it its call becomes an event.
    pub(super) fn returned<S: Sink>(&mut self, returned: &Return, sink: &mut S) -> Result<(), S::Error> {
        let Some(taken) = self.taken.get_mut(returned.function as usize) else { return Ok(()) };
        taken.returns += 1;
        let Some(process) = self.processes.get_mut(&upper(returned.pid_tid)) else { return Ok(()) };
        let Some(thread) = process.threads.get_mut(&lower(returned.pid_tid)) else {
            self.gaps.returns_without_call += 1;
            return Ok(());
        };
        // A call above this one on the list lies within it, and has ended with it.
        while let Some(abandoned) = thread.take_abandoned(returned.stack_pointer.wrapping_sub(8 + 1)) {
            self.gaps.calls_without_return += 1;
            let mut teller = teller!(self, process);
            self.events += teller.give_up(abandoned, sink)?;
        }
        let Some(pending) = thread.take_returned(returned) else {
            self.gaps.returns_without_call += 1;
            return Ok(());
        };
        let end = End {
            duration_ns: (returned.time_ns as i64).saturating_sub(pending.start_ns).max(0) as u64,
            result: returned.result as i32,
            outs: returned.outs,
        };
        let Pending { key, cupti, open, .. } = pending;
        let fate = open.finish(&end, thread, &mut process.kernels, &mut process.objects, &mut self.work, sink)?;
        let mut teller = teller!(self, process);
        self.events += teller.settle(key, fate, cupti, sink)?;
        if cupti != 0 && end.result != 0 {
            process.objects.device.refused(cupti, &mut self.device);
        }
        let untold = process.objects.graphs.take_untold();
        self.gaps.unknown_graph_changes += untold.changes;
        self.gaps.captures_without_begin += untold.captures;
        Ok(())
    }
}

fn define_function<S: Sink>(symbol: &str, sink: &mut S) -> Result<u32, S::Error> {
    let name = sink.string(symbol)?;
    let domain = match symbol.trim_start_matches('_') {
        symbol if symbol.starts_with("cuda") => api_domain::RUNTIME,
        symbol if symbol.starts_with("nccl") => api_domain::NCCL,
        _ => api_domain::DRIVER,
    };
    sink.define(Function { name, domain, callback_id: 0 })
}

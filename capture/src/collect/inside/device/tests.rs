//! Calls and what the device did, in every order in which they can come.

use ktape_ebpf::inside::{FunctionName, KernelRan, Missing, kind as inside, missing};
use ktape_ebpf::wire::{Call, Correlated, Plain as _, Return, STACK_WORDS, StackCall, kind};
use ktape_format::{Memory, Table as _};

use super::*;
use crate::collect::events::{Collector, DeviceTimes, Identity, Notice, Settled};
use crate::probes::functions;

const PID_TID: u64 = 7 << 32 | 7;

struct Test {
    collector: Collector,
    sink: Memory,
}

impl Test {
    fn new() -> Test {
        let (mut collector, mut sink) = (Collector::new(functions::all(), true), Memory::default());
        collector.expect_device_times(DeviceTimes::OfAll);
        let Ok(()) = collector.begin_process(&Identity { pid: 7, ..Identity::default() }, true, &mut sink);
        Test { collector, sink }
    }

    fn take(&mut self, record: &[u8]) {
        let Ok(notice) = self.collector.take(record, &mut self.sink);
        assert_eq!(notice, None);
    }

    fn call(&mut self, symbol: &str, time_ns: u64, registers: [u64; 6], words: [u64; STACK_WORDS]) {
        let function = functions::all().iter().position(|function| function.symbol == symbol).expect("it") as u32;
        let (kind, cpu) = (kind::STACK_CALL as u16, NO_CPU);
        let call = Call { kind, cpu, function, time_ns, pid_tid: PID_TID, stack: 0, stack_pointer: 0x7000, registers };
        self.take(StackCall { call, words }.as_bytes());
    }

    fn returned(&mut self, symbol: &str, time_ns: u64, result: u64) {
        let function = functions::all().iter().position(|function| function.symbol == symbol).expect("it") as u32;
        let (kind, stack_pointer) = (kind::RETURN, 0x7008);
        self.take(Return { kind, function, time_ns, pid_tid: PID_TID, stack_pointer, result, outs: [0; 2] }.as_bytes());
    }

    fn correlated(&mut self, correlation: u32) {
        let kind = inside::CORRELATED;
        self.take(Correlated { kind, correlation, time_ns: 0, pid_tid: PID_TID }.as_bytes());
    }

    /// The same of a call that was not entered before this.
    fn correlated_since(&mut self, correlation: u32, time_ns: u64) {
        let kind = inside::CORRELATED;
        self.take(Correlated { kind, correlation, time_ns, pid_tid: PID_TID }.as_bytes());
    }

    fn launch(&mut self, time_ns: u64, id: u32, result: u64) {
        // Grid, block and the stream 0x77.
        self.call("cuLaunchKernel", time_ns, [0x1234, 16, 1, 1, 128, 1], [1, 64, 0x77, 0, 0]);
        self.correlated(id);
        self.returned("cuLaunchKernel", time_ns + 5, result);
    }

    /// The device's record of a kernel, read at this time.
    fn kernel(&mut self, id: u32, start_ns: u64, end_ns: u64, now_ns: u64) {
        let ran = Ran { start_ns, end_ns, stream: 13, context: 1, ..ran(inside::KERNEL_RAN, id) };
        let record =
            KernelRan { ran, name: 1, registers: 40, grid: [16, 1, 1], block: [128, 1, 1], ..KernelRan::default() };
        self.device(record.as_bytes(), now_ns);
    }

    fn copy(&mut self, id: u32, start_ns: u64, bytes: u64) {
        let ran = Ran { start_ns, end_ns: start_ns + 7, stream: 7, context: 1, ..ran(inside::COPY_RAN, id) };
        self.device(CopyRan { ran, bytes, copy: 1, memory: 1 | 3 << 16, ..CopyRan::default() }.as_bytes(), 1000);
    }

    fn device(&mut self, record: &[u8], now_ns: u64) {
        let name = |id| (id == 1).then(|| "gemm".into());
        let Ok(notice) = self.collector.take_device(record, name, now_ns, &mut self.sink);
        assert_eq!(notice, None);
    }

    fn end(mut self) -> (DeviceCounts, Memory) {
        let Ok(()) = self.collector.end_process(7, &mut self.sink);
        (self.collector.device(), self.sink)
    }

    /// Whether all that was settled balances: nothing is written that was not seen, with what the device's rows were seen as.
    fn balance(&mut self, seen: &[(u16, u64)]) {
        let mut written = std::collections::BTreeMap::<u16, i64>::new();
        for (key, settled) in self.collector.settled() {
            *written.entry(key.kind()).or_default() += settled.written as i64 + settled.lost as i64 - settled.came;
        }
        let expected: std::collections::BTreeMap<u16, i64> =
            seen.iter().map(|&(kind, count)| (kind, count as i64)).collect();
        assert_eq!(written, expected);
    }
}

fn ran(kind: u32, correlation: u32) -> Ran {
    Ran { kind, correlation, pid_tid: PID_TID, ..Ran::default() }
}

#[test]
fn a_kernel_has_its_launch_s_number_stream_and_kernel() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    test.kernel(501, 100, 250, 1000);
    test.balance(&[(1, 1), (4, 1)]);
    let (counts, sink) = test.end();
    let (launch, kernel) = (sink.events.launch.row(0), sink.events.kernel.row(0));
    assert_eq!((kernel.start_ns, kernel.duration_ns, kernel.timing), (100, 150, timing::MEASURED));
    assert_eq!((kernel.correlation, kernel.stream), (launch.correlation, launch.stream));
    let shape = sink.definitions.get::<Shape>(kernel.shape).unwrap();
    assert_eq!((shape.grid_x, shape.block_x, shape.registers), (16, 128, 40));
    assert_eq!(sink.definitions.kernel_name(kernel.shape), "gemm");
    // The launch's kernel had no name: the device says it.
    assert_eq!(counts, DeviceCounts { kernels: 1, ..DeviceCounts::default() });
}

#[test]
fn a_kernel_that_events_bound_is_as_its_launch_says_and_without_one_is_nothing() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    let between = |id| Ran { start_ns: 100, end_ns: 250, ..ran(inside::KERNEL_TIMED, id) };
    test.device(between(501).as_bytes(), 1000);
    test.device(between(777).as_bytes(), 1000);
    let (counts, sink) = test.end();
    let (launch, kernel) = (sink.events.launch.row(0), sink.events.kernel.row(0));
    assert_eq!((kernel.start_ns, kernel.duration_ns, kernel.timing), (100, 150, timing::BOUNDED));
    assert_eq!((kernel.correlation, kernel.stream, kernel.shape), (launch.correlation, launch.stream, launch.shape));
    assert_eq!((sink.events.kernel.len(), counts.kernels, counts.of_unknown_calls), (1, 1, 1));
}

#[test]
fn what_the_device_did_for_a_launch_that_is_out_of_scope_is_left_out_with_it() {
    use crate::collect::events::LaunchScope;
    for (files, kernel) in [(&[][..], Some("softmax")), (&["*/model.py".to_owned()], None)] {
        let mut test = Test::new();
        test.collector.set_scope(LaunchScope::new(files, kernel).expect("it is right"));
        let Ok(()) = test.collector.begin_process(&Identity { pid: 7, ..Identity::default() }, true, &mut test.sink);
        let mut name = FunctionName { kind: inside::FUNCTION_NAME, bytes: 4, pid_tid: PID_TID, handle: 0x1234 }
            .as_bytes()
            .to_vec();
        name.extend(b"gemm");
        test.take(&name);
        test.launch(10, 501, 0);
        test.kernel(501, 100, 250, 1000);
        let between = Ran { start_ns: 300, end_ns: 350, ..ran(inside::KERNEL_TIMED, 502) };
        test.launch(270, 502, 0);
        test.device(between.as_bytes(), 1000);
        let changes = test.collector.take_scope_changes();
        assert_eq!(changes, if kernel.is_some() { vec![(7, 0x1234, true)] } else { Vec::new() });
        let gaps = test.collector.gaps();
        let (counts, sink) = test.end();
        assert_eq!((sink.events.launch.len(), sink.events.kernel.len()), (0, 0));
        assert_eq!((counts, gaps.returns_without_call), (DeviceCounts::default(), 0), "{kernel:?}");
    }
}

#[test]
fn a_record_that_comes_before_its_call_waits_for_it() {
    let mut test = Test::new();
    test.kernel(501, 100, 250, 1000);
    assert_eq!(test.sink.events.kernel.len(), 0);
    test.launch(10, 501, 0);
    let (counts, sink) = test.end();
    assert_eq!(sink.events.kernel.correlation, sink.events.launch.correlation);
    assert_eq!((counts.kernels, counts.of_unknown_calls, counts.of_older_calls), (1, 0, 0));
}

#[test]
fn what_has_no_call_is_written_and_counted_by_the_reason() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    // The first is older than the first that was told of, the second's call was lost.
    test.kernel(500, 100, 250, 1000);
    test.kernel(600, 300, 350, 1000);
    let Ok(()) = test.collector.sweep_device(1000 + WAITS_NS - 1, &mut test.sink);
    assert_eq!(test.sink.events.kernel.len(), 0, "they still may have one");
    let Ok(()) = test.collector.sweep_device(1000 + WAITS_NS, &mut test.sink);
    assert_eq!(test.sink.events.kernel.correlation, [0, 0]);
    let (counts, _) = test.end();
    assert_eq!((counts.of_older_calls, counts.of_unknown_calls, counts.launches_cut_off), (1, 1, 1));
}

#[test]
fn a_launch_without_a_kernel_is_counted_by_the_reason() {
    let mut test = Test::new();
    test.launch(10, 501, 700);
    test.launch(20, 502, 0);
    let Ok(()) = test.collector.finish(&mut test.sink);
    let counts = test.collector.device();
    assert_eq!((counts.refused_launches, counts.launches_without_kernel, counts.launches_cut_off), (1, 1, 0));
}

#[test]
fn a_copy_is_there_once_whoever_tells_of_it_first() {
    for is_device_first in [false, true] {
        let mut test = Test::new();
        test.call("cuMemcpyHtoD_v2", 10, [0x9000, 0x1000, 256, 0, 0, 0], [0; STACK_WORDS]);
        test.correlated(501);
        if is_device_first {
            test.copy(501, 12, 256);
        }
        test.returned("cuMemcpyHtoD_v2", 30, 0);
        if !is_device_first {
            assert_eq!(test.sink.events.memcpy.len(), 0, "it waits for its time");
            test.copy(501, 12, 256);
        }
        test.balance(&[(3, 1), (5, 1)]);
        let (counts, sink) = test.end();
        let row = sink.events.memcpy.row(0);
        assert_eq!(
            (sink.events.memcpy.len(), row.start_ns, row.duration_ns, row.bytes, row.timing),
            (1, 12, 7, 256, 1)
        );
        assert_eq!((row.kind, row.source_memory, row.target_memory), (1, 1, 3));
        assert_eq!(row.correlation, sink.events.api.correlation[0]);
        assert_eq!(counts, DeviceCounts { copies: 1, ..DeviceCounts::default() });
    }
}

#[test]
fn a_copy_that_the_device_does_not_tell_of_is_on_the_tape_without_a_time() {
    let mut test = Test::new();
    test.call("cuMemcpyHtoD_v2", 10, [0x9000, 0x1000, 256, 0, 0, 0], [0; STACK_WORDS]);
    test.correlated(501);
    test.returned("cuMemcpyHtoD_v2", 30, 0);
    let (counts, sink) = test.end();
    assert_eq!((sink.events.memcpy.len(), sink.events.memcpy.timing[0]), (1, timing::ABSENT));
    assert_eq!(counts.copies_without_time, 1);
}

#[test]
fn a_kernel_without_a_time_is_there_at_its_call() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    // Told a long time after: it was counted then.
    let told_ns = 3 << 33;
    test.kernel(501, told_ns, 0, told_ns + 5);
    test.balance(&[(1, 1), (4, 1)]);
    let (counts, sink) = test.end();
    let kernel = sink.events.kernel.row(0);
    assert_eq!((kernel.start_ns, kernel.duration_ns, kernel.timing), (10, 0, timing::ABSENT));
    assert_eq!(counts.without_time, 1);
}

#[test]
fn a_kernel_counts_where_it_ended_however_long_it_ran() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    let hour_ns = 3_600_000_000_000;
    test.kernel(501, 100, hour_ns, hour_ns + 5);
    let kernels = test.collector.settled().filter(|(key, _)| key.kind() == Kernel::KIND);
    let one = Settled { written: 1, ..Settled::default() };
    assert_eq!(kernels.collect::<Vec<_>>(), [(Key::new(hour_ns, NO_CPU, Kernel::KIND), one)]);
}

#[test]
fn a_number_that_comes_again_is_the_last_call_s() {
    let mut test = Test::new();
    test.launch(10, 501, 0);
    test.launch(20, 501, 0);
    test.kernel(501, 100, 250, 1000);
    let (counts, sink) = test.end();
    assert_eq!(sink.events.kernel.correlation[0], sink.events.launch.correlation[1]);
    assert_eq!(counts.launches_without_kernel, 1);
}

#[test]
fn the_number_of_a_call_that_was_lost_is_not_the_call_s_before() {
    let mut test = Test::new();
    // Neither is told of a number; the launch at 20 found no room in the ring buffer.
    test.call("cuLaunchKernel", 10, [0x1234, 16, 1, 1, 128, 1], [1, 64, 0x77, 0, 0]);
    test.correlated_since(501, 20 + 1);
    test.launch(30, 502, 0);
    test.call("cuLaunchKernel", 40, [0x1234, 16, 1, 1, 128, 1], [1, 64, 0x77, 0, 0]);
    test.correlated_since(503, 20 + 1);
    for id in [501, 502, 503] {
        test.kernel(id, 100, 250, 1000);
    }
    let (counts, sink) = test.end();
    let starts: std::collections::BTreeMap<u64, i64> =
        sink.events.launch.rows().map(|row| (row.correlation, row.start_ns)).collect();
    let launched: Vec<i64> =
        sink.events.kernel.correlation.iter().map(|id| starts.get(id).copied().unwrap_or(0)).collect();
    assert_eq!(launched, [30, 40, 0]);
    assert_eq!((counts.kernels, counts.of_unknown_calls, counts.of_older_calls), (3, 1, 0));
}

#[test]
fn what_is_told_of_a_process_that_is_not_known_is_lost_with_its_time_and_table() {
    let mut test = Test::new();
    let stranger = 8 << 32 | 8;
    let ran = |kind, start_ns, end_ns| Ran { pid_tid: stranger, start_ns, end_ns, ..ran(kind, 501) };
    let kernel =
        |start_ns, end_ns| KernelRan { ran: ran(inside::KERNEL_RAN, start_ns, end_ns), ..KernelRan::default() };
    let (early, late) = (kernel(100, 250), kernel(300, 1 << 34));
    let copy = CopyRan { ran: ran(inside::COPY_RAN, 400, 410), ..CopyRan::default() };
    let why = missing::DROPPED;
    let missing = Missing { kind: inside::MISSING, why, pid_tid: stranger, since_ns: 5, until_ns: 9, count: 3 };
    for record in [early.as_bytes(), late.as_bytes(), copy.as_bytes(), missing.as_bytes()] {
        let Ok(notice) = test.collector.take_device(record, |_| None, 1000, &mut test.sink);
        assert!(matches!(notice, None | Some(Notice::Unknown(8))), "{notice:?}");
        let Ok(()) = test.collector.lose(record, &mut test.sink);
    }
    let mut settled: Vec<_> = test.collector.settled().collect();
    settled.sort_by_key(|(key, _)| *key);
    let one = Settled { lost: 1, ..Settled::default() };
    let key = |time_ns, kind| Key::new(time_ns, NO_CPU, kind);
    assert_eq!(
        settled,
        [(key(250, Kernel::KIND), one), (key(410, Memcpy::KIND), one), (key(1 << 34, Kernel::KIND), one)]
    );
    let Ok(()) = test.collector.sweep_device(2000, &mut test.sink);
    let Ok(()) = test.collector.sweep_device(3000, &mut test.sink);
    let (_, sink) = test.end();
    let losses = sink.events.loss.rows().map(|row| (row.kind, row.count, row.start_ns, row.duration_ns));
    let expected = [(0, 3, 5, 4), (Kernel::KIND, 2, 100, (1 << 34) - 100), (Memcpy::KIND, 1, 400, 10)];
    assert_eq!(losses.collect::<Vec<_>>(), expected);
}

#[test]
fn work_of_a_stream_that_runs_past_its_successor_is_counted_and_kept_as_it_is() {
    let mut test = Test::new();
    for (id, start_ns, end_ns) in [(501, 100, 250), (502, 200, 300), (503, 300, 350)] {
        test.launch(u64::from(id) - 500, id, 0);
        test.kernel(id, start_ns, end_ns, 1000);
    }
    // In another stream, and a node of a graph.
    test.copy(900, 210, 64);
    let ran = Ran {
        start_ns: 310,
        end_ns: 990,
        stream: 13,
        context: 1,
        graph: 3,
        graph_node: 5,
        ..ran(inside::KERNEL_RAN, 901)
    };
    test.device(KernelRan { ran, name: 1, ..KernelRan::default() }.as_bytes(), 1000);
    let (counts, sink) = test.end();
    assert_eq!(counts.overlapping, 1);
    assert_eq!(sink.events.kernel.duration_ns[..3], [150, 100, 50]);
}

#[test]
fn what_cupti_dropped_is_a_loss() {
    let mut test = Test::new();
    let (kind, why) = (inside::MISSING, missing::DROPPED);
    let record = Missing { kind, why, pid_tid: PID_TID, since_ns: 100, until_ns: 300, count: 17 };
    test.take(record.as_bytes());
    let (counts, sink) = test.end();
    let loss = sink.events.loss.row(0);
    assert_eq!((counts.missing, loss.count, loss.start_ns, loss.duration_ns), (17, 17, 100, 200));
    assert_eq!(sink.definitions.string(loss.cause), "CUPTI dropped its records");
}

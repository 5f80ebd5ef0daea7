//! Each kind of record, from made-up callback data.

use std::alloc::{Layout as Size, alloc_zeroed};
use std::ffi::{CStr, c_void};
use std::ptr::null;

use ktape_ebpf::inside::ring::{HEADER_BYTES, Reader};
use ktape_ebpf::inside::{Control, ProcessPage};
use ktape_ebpf::wire::{ListsCall, MemoryCall, Plan, STACK_WORDS, StackCall};

use super::*;

/// A ring, and a thread that writes calls into it.
struct Ring {
    writer: Writer,
    reader: Reader,
    caller: Caller,
    guest: Guest,
}

const RING_BYTES: usize = 1 << 16;

impl Ring {
    fn new() -> Ring {
        // SAFETY: sizes are not 0; zeros are what each begins with. Never freed.
        let zeros = |bytes: usize| unsafe { alloc_zeroed(Size::from_size_align(bytes, 4096).unwrap()) };
        let memory = zeros(HEADER_BYTES + RING_BYTES);
        // SAFETY: as above.
        let (control, page) = unsafe { (&*zeros(4096).cast::<Control>(), &*zeros(4096).cast::<ProcessPage>()) };
        let pid = std::process::id();
        // Each test's thread is another to what has been sent.
        // SAFETY: as above; no pointers.
        let (writer, reader) = unsafe {
            let tid = libc::gettid() as u32;
            (
                Writer::begin(memory, RING_BYTES as u64, (pid, tid), 1),
                Reader::new(memory, HEADER_BYTES + RING_BYTES).unwrap(),
            )
        };
        let guest = Guest {
            directory: "".into(),
            control,
            page,
            functions: Vec::new(),
            calls: true,
            announce: false,
            ring_bytes: RING_BYTES as u32,
            pid,
        };
        Ring { writer, reader, caller: Caller::new(pid), guest }
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        self.reader.next(&mut record).unwrap().then_some(record)
    }

    /// Enters a function, and takes its record, behind which comes the call's correlation id.
    fn enter(&mut self, entry: &FunctionEntry, data: &CallbackData) -> Vec<u8> {
        self.caller.enter(&self.guest, (data, entry), 77, &mut self.writer);
        let record = self.next().unwrap();
        let correlated = Correlated::read(&self.next().unwrap()).unwrap();
        let pid_tid = self.writer.pid_tid();
        assert_eq!(correlated, Correlated { kind: kind::CORRELATED, correlation: 4321, time_ns: 77, pid_tid });
        assert_eq!(self.next(), None);
        record
    }
}

/// The functions of these tests, by their numbers. All tests share what is known of them.
const NAMES: [&str; 6] = [
    "cuStreamSynchronize",
    "cuLaunchKernel_ptsz",
    "cuLaunchKernelEx",
    "cuMemcpyBatchAsync_v2",
    "cuModuleGetFunction",
    "cuModuleUnload",
];

fn entry(name: &str, plan: Plan) -> FunctionEntry {
    let of = |(function, name): (u32, &str)| {
        let mut symbol = [0; 64];
        symbol[..name.len()].copy_from_slice(name.as_bytes());
        FunctionEntry { symbol, plan, function, returns: 1, padding: 0 }
    };
    prepare(&(0..).zip(NAMES).map(of).collect::<Vec<_>>());
    of((NAMES.iter().position(|known| *known == name).unwrap() as u32, name))
}

fn data<T>(parameters: &T, symbol: Option<&CStr>, word: &mut u64) -> CallbackData {
    CallbackData {
        site: 0,
        function_name: null(),
        function_params: std::ptr::from_ref(parameters).cast(),
        function_return_value: null(),
        symbol_name: symbol.map_or(null(), CStr::as_ptr),
        context: null(),
        context_uid: 0,
        correlation_data: word,
        correlation_id: 4321,
    }
}

#[test]
fn a_call_has_its_registers_and_its_return_the_result() {
    let mut ring = Ring::new();
    let entry = entry("cuStreamSynchronize", Plan { record: wire::kind::CALL, tally: 8, ..Plan::default() });
    let (stream, mut word) = (0xabcd_u64, 0);
    let mut data = data(&stream, None, &mut word);
    let call = Call::read(&ring.enter(&entry, &data)).unwrap();
    let expected = Call {
        kind: wire::kind::CALL as u16,
        cpu: tally::NO_CPU,
        function: 0,
        time_ns: 77,
        pid_tid: ring.writer.pid_tid(),
        stack: 0,
        stack_pointer: (&raw const stream) as u64,
        registers: [0xabcd, 0, 0, 0, 0, 0],
    };
    assert_eq!(call, expected);
    assert_eq!((ring.reader.slot(0).seen[8], ring.reader.slot(0).lost[8]), (1, 0));
    let refused = 700u32;
    data.function_return_value = (&raw const refused).cast();
    ring.caller.leave((&data, &entry), 99, &mut ring.writer);
    let returned = Return::read(&ring.next().unwrap()).unwrap();
    assert_eq!((returned.time_ns, returned.result, returned.outs), (99, 700, [0, 0]));
    assert_eq!(returned.stack_pointer, call.stack_pointer + 8);
}

#[test]
fn a_launch_has_all_its_words_and_the_name_of_a_kernel_comes_once_before_it() {
    #[repr(C)]
    struct Launch(u64, [u32; 7], u64, u64, u64);
    let mut ring = Ring::new();
    let plan = Plan { record: wire::kind::STACK_CALL, stack: stack_use::EVENT | stack_use::LAUNCH, ..Plan::default() };
    let entry = entry("cuLaunchKernel_ptsz", plan);
    let launch = Launch(0x5000, [1, 2, 3, 4, 5, 6, 7], 8, 9, 10);
    let (mut word, names) = (0, [c"_Z5scalePf", c"_Z4copyPf"]);
    for (round, name) in [(0, names[0]), (1, names[0]), (2, names[1]), (3, names[1])] {
        let data = data(&launch, Some(name), &mut word);
        if round != 1 {
            ring.caller.enter(&ring.guest, (&data, &entry), 77, &mut ring.writer);
            let record = ring.next().unwrap();
            let told = FunctionName::read(&record).unwrap();
            assert_eq!((told.kind, told.handle), (kind::FUNCTION_NAME, 0x5000));
            assert_eq!(&record[size_of::<FunctionName>()..], name.to_bytes());
            ring.next().unwrap();
            ring.next().unwrap();
        }
        let call = StackCall::read(&ring.enter(&entry, &data)).unwrap();
        assert_eq!((call.call.registers, call.words), ([0x5000, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10]));
        if round == 2 {
            // The module goes, and its handle may be another's, whose name may be at the same place.
            let unload = super::tests::entry("cuModuleUnload", Plan::default());
            assert!(function(&unload).unloads && !function(&entry).unloads);
            UNLOADS.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[test]
fn a_structure_is_kept_where_it_can_be_read() {
    #[repr(C)]
    struct LaunchEx(*const c_void, u64, u64, u64);
    let mut ring = Ring::new();
    let plan = Plan { record: wire::kind::MEMORY_CALL, bytes: 56, ..Plan::default() };
    let entry = entry("cuLaunchKernelEx", plan);
    let mut word = 0;
    let (on_stack, on_heap) = ([7u8; 56], vec![7u8; 56]);
    for (config, is_there) in [
        (on_stack.as_ptr(), true),
        (on_heap.as_ptr(), true),
        (null(), false),
        (std::ptr::without_provenance(16), false),
    ] {
        let launch = LaunchEx(config.cast(), 0x5000, 3, 4);
        let call = MemoryCall::read(&ring.enter(&entry, &data(&launch, None, &mut word))).unwrap();
        assert_eq!(call.call.registers[..4], [config as u64, 0x5000, 3, 4]);
        assert_eq!(call.bytes, if is_there { 56 } else { 0 });
        assert!(!is_there || call.memory[..56] == on_stack);
    }
}

#[test]
fn lists_are_kept_each_in_its_share_and_none_where_one_cannot_be_read() {
    #[repr(C)]
    struct Batch(*const u64, *const u64, *const u64, u64, u64, u64, u64, u64);
    let mut ring = Ring::new();
    let plan = Plan { record: wire::kind::LISTS_CALL, lists: 3, count: 3, bytes: 8, ..Plan::default() };
    let entry = entry("cuMemcpyBatchAsync_v2", plan);
    let mut word = 0;
    let lists: [Vec<u64>; 3] = [1, 2, 3].map(|list| vec![list; 500]);
    let share = wire::LIST_BYTES / 8;
    for (count, third, kept) in
        [(2, lists[2].as_ptr(), 2), (500, lists[2].as_ptr(), share), (2, null(), 0), (0, null(), 0)]
    {
        let batch = Batch(lists[0].as_ptr(), lists[1].as_ptr(), third, count, 5, 6, 7, 8);
        let record = ring.enter(&entry, &data(&batch, None, &mut word));
        assert_eq!(record.len(), size_of::<ListsCall>());
        let call = ListsCall::read(&record).unwrap();
        assert_eq!((call.bytes, call.words), (8 * kept as u64, [7, 8, 0, 0, 0]));
        for (list, share) in lists.iter().zip(call.memory.chunks_exact(wire::LIST_BYTES)) {
            let words: Vec<u64> = share.as_chunks().0[..kept].iter().map(|word| u64::from_ne_bytes(*word)).collect();
            assert_eq!(words, list[..kept]);
        }
    }
    // A count that makes no sense.
    let batch = Batch(lists[0].as_ptr(), lists[1].as_ptr(), lists[2].as_ptr(), u64::MAX, 5, 6, 7, 8);
    ring.enter(&entry, &data(&batch, None, &mut word));
    const _: () = assert!(STACK_WORDS == 5);
}

#[test]
fn a_name_is_kept_with_its_end_and_what_is_handed_out_by_it() {
    #[repr(C)]
    struct GetFunction(*mut u64, u64, *const i8);
    let mut ring = Ring::new();
    let plan = Plan { record: wire::kind::NAMED_CALL, pointer: 2, outs: [1, 0], ..Plan::default() };
    let entry = entry("cuModuleGetFunction", plan);
    let long = [b'x'; 5000];
    let (mut handed_out, mut word) = (0x77u64, 0);
    for (name, kept) in [(c"scale".as_ptr(), 6), (long.as_ptr().cast(), wire::NAME_BYTES), (null(), 0)] {
        let get = GetFunction(&raw mut handed_out, 0x9000, name);
        let data = data(&get, None, &mut word);
        let record = ring.enter(&entry, &data);
        let bytes = u64::from_ne_bytes(record[size_of::<Call>()..][..8].try_into().unwrap());
        assert_eq!((bytes, record.len()), (kept as u64, size_of::<Call>() + 8 + kept));
        ring.caller.leave((&data, &entry), 99, &mut ring.writer);
        assert_eq!(Return::read(&ring.next().unwrap()).unwrap().outs, [0x77, 0]);
    }
    let get = GetFunction(std::ptr::without_provenance_mut(16), 0x9000, null());
    ring.caller.leave((&data(&get, None, &mut word), &entry), 99, &mut ring.writer);
    assert_eq!(Return::read(&ring.next().unwrap()).unwrap().outs, [0, 0]);
}

#[test]
fn a_call_without_room_is_counted_and_leaves_no_correlation() {
    let mut ring = Ring::new();
    let entry = entry("cuStreamSynchronize", Plan { record: wire::kind::CALL, tally: 8, ..Plan::default() });
    let (stream, mut word) = (1u64, 0);
    let data = data(&stream, None, &mut word);
    let calls = 2 * RING_BYTES / size_of::<Call>();
    (0..calls).for_each(|_| ring.caller.enter(&ring.guest, (&data, &entry), 77, &mut ring.writer));
    let records: Vec<_> = std::iter::from_fn(|| ring.next()).collect();
    let told = records.iter().filter(|record| record.len() == size_of::<Call>()).count();
    let slot = ring.reader.slot(0);
    assert_eq!((slot.seen[8], slot.lost[8]), (calls as u64, (calls - told) as u64));
    assert!(slot.lost[8] > 0 && records.len() - told <= told);
}

//! What is read does not depend on the number of threads.

use ktape_format::definition::Process;
use ktape_format::event::{Kernel, Launch};
use ktape_format::{Sink, Tape, Wanted};

use crate::{same_events, staged, tape_of};

#[test]
fn one_thread_and_many_read_the_same() {
    // More blocks than are decoded at a time.
    const BLOCKS: i64 = 1500;
    let mut bytes = tape_of(&staged(0), |writer| {
        for block in 0..BLOCKS {
            let process = writer.define(Process { pid: block, ..Process::default() })?;
            let args = writer.string(&format!("block {block}"))?;
            for event in 0..1 + block % 5 {
                let start_ns = block * 1000 - event;
                writer.event(Launch { start_ns, thread: process, args, ..Launch::default() })?;
            }
            writer.event(Kernel { start_ns: -block, ..Kernel::default() })?;
            writer.seal()?;
        }
        Ok(())
    });
    let tape = Tape::from_bytes(bytes.clone()).unwrap();
    assert_eq!(tape.blocks().len() as i64, BLOCKS + 1);
    // Some of them damaged, in the header or in the payload.
    for block in tape.blocks().iter().step_by(97) {
        bytes[block.offset as usize + [20, 140][block.sequence as usize % 2]] ^= 1;
    }
    let read = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| Tape::from_bytes(bytes.clone()).unwrap().read(&Wanted::default()).unwrap())
    };
    let one = read(1);
    assert_eq!(one.damage.len(), 16);
    assert_eq!(one.events.kernel.start_ns.len() as i64, BLOCKS - 16);
    for threads in [2, 7] {
        let many = read(threads);
        assert_eq!(one.damage, many.damage);
        assert_eq!(one.definitions, many.definitions);
        assert!(same_events(&one.events, &many.events), "{threads} threads");
    }
}

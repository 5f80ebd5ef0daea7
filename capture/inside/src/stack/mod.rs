//! Who called: the Python stack of the calling thread, as a hash, without eBPF.
//!
//! The recorder has found the interpreter from outside and written where it is into the process's page. From the thread's state its
//! chain of frames is walked (`chain.rs`), and a stack that this thread has not sent before is sent before the call that has it
//! (`bodies.rs`, `sent.rs`), with the records of the eBPF programs. `freed.rs` notices that code objects are freed.
//!
//! What is different from outside: there are no native frames; a thread that runs no Python has no stack, as who waits for it is not
//! looked for; and a stack's hash is made from the outermost frame inwards. A hash is only compared with others of its process.
//!
//! While a call lasts nobody frees the calling thread's state, its frames or their code objects, whether it holds the interpreter's
//! lock or not: they are of the C call that it is in. The exception is the end of the interpreter, in which the main thread frees the states
//! of all others. It is announced in the runtime before it begins; from then on everything is read through the kernel, which
//! cannot fault. A thread that was already reading when it was announced has a chain of a few dozen loads before it, the
//! interpreter a flush of its files and the exit functions: it would have to be kept from its processor for that long.

mod bodies;
mod chain;
mod freed;
mod interpreter;
pub mod sent;

use ktape_ebpf::inside::ProcessPage;
use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::python::{self, TASK_NAME_BYTES, TaskName};
use ktape_ebpf::wire::{Plain as _, STACK_TOO_EARLY, STACK_UNREADABLE, TaskBody, kind};

use crate::memory::{Again, Alive, Guarded};
use bodies::{Body, Sender};
use chain::{Chain, Compared};
use interpreter::{Change, Known};
use sent::{Sent, What, When, mix};

/// What the process has sent.
pub static SENT: Sent = Sent::new();

/// Lets go of the process's Python: nothing is walked any more.
pub fn stop() {
    freed::stop();
}

/// What [`freed`] tells.
fn code_freed(code: u64) {
    SENT.free(code);
}

/// What a thread's stacks are told with.
#[derive(Debug)]
pub struct Stacks {
    memory: Alive,
    guarded: Guarded,
    known: Known,
    chain: Box<Chain>,
    /// The thread's state at its last call.
    state: u64,
    /// The frame of the chain that runs an asyncio task, and how many frames there are from the innermost to it.
    runner: Option<(u64, u32)>,
    /// The hash of the stack that was told last, and when; 0 for none that can be told again.
    last: (u64, When),
}

impl Stacks {
    /// Those of the calling thread, of the process of this number. Allocates.
    pub fn new(pid: u32) -> Stacks {
        Stacks {
            memory: Alive::new(),
            guarded: Guarded { pid },
            known: Known::default(),
            chain: Chain::new(),
            state: 0,
            runner: None,
            last: (0, When { rotation: 0, epoch: 0 }),
        }
    }

    /// The hash of the calling thread's stack, which is sent before, if it is new; 0 for none, [`STACK_UNREADABLE`] where it is not known,
    /// [`STACK_TOO_EARLY`] where there is no interpreter yet.
    #[inline(always)]
    pub fn tell(&mut self, page: &ProcessPage, writer: &mut Writer, pid_tid: u64) -> u64 {
        let when = SENT.now();
        match self.walk(page) {
            Walked::Early => STACK_TOO_EARLY,
            Walked::Nothing => 0,
            Walked::Unreadable => STACK_UNREADABLE,
            Walked::Same if self.last == (self.last.0, when) && self.last.0 != 0 => self.last.0,
            Walked::Same | Walked::Other => self.tell_new(when, writer, pid_tid).unwrap_or(STACK_UNREADABLE),
        }
    }

    #[inline(always)]
    fn walk(&mut self, page: &ProcessPage) -> Walked {
        match self.known.refresh(page, self.guarded) {
            None => return Walked::Early,
            Some(Change::Same) => {}
            Some(Change::Other) => self.begin(),
        }
        let Some(is_finalizing) = self.known.is_finalizing(&self.memory) else { return Walked::Unreadable };
        let Some(state) = self.known.state(&self.memory, self.guarded) else { return Walked::Unreadable };
        self.state = state;
        if state == 0 {
            return Walked::Nothing;
        }
        let compared = if is_finalizing {
            self.chain.release();
            let compared = walk(&mut self.chain, &self.guarded, &self.known, state);
            self.chain.release();
            compared
        } else {
            walk(&mut self.chain, &self.memory, &self.known, state)
        };
        match compared {
            None => Walked::Unreadable,
            Some(Compared::Same) if self.runner.is_none() => Walked::Same,
            Some(Compared::Same) => Walked::Other,
            Some(Compared::Other) => {
                self.find_runner();
                if self.chain.depth() == 0 { Walked::Nothing } else { Walked::Other }
            }
        }
    }

    #[cold]
    fn begin(&mut self) {
        self.chain.set_layout(&self.known.interpreter.layout);
        self.runner = None;
        self.last.0 = 0;
    }

    fn find_runner(&mut self) {
        let runner = self.known.interpreter.task_runner;
        if runner != 0 {
            let at = self.chain.frames().zip(1..).find(|((_, frame), _)| frame.code == runner);
            self.runner = at.map(|((address, _), count)| (address, count));
        }
    }

    /// The hash of a stack that may be another than the one before. `None` if it cannot be told.
    #[inline(never)]
    fn tell_new(&mut self, when: When, writer: &mut Writer, pid_tid: u64) -> Option<u64> {
        let tid = pid_tid as u32;
        let mut sender = Sender { writer, pid_tid, rotation: when.rotation };
        // A stack that was cut is another than the same one whole.
        let mut hash = mix(mix(self.chain.hash(), when.epoch), self.chain.end() as u64);
        let mut is_sent = true;
        let task = self.task();
        if let Some((of_task, name)) = &task {
            hash = mix(hash, *of_task);
            is_sent = send_task(*of_task, name, &mut sender, when);
        }
        // None of those that say that there is none: they have another bit.
        let hash = hash & !1 | 2;
        if !SENT.was_sent(What::Stack(hash), when, tid) {
            is_sent &= self.send(hash, task.map_or(0, |(hash, _)| hash), &mut sender, when)?;
            if is_sent {
                SENT.remember(What::Stack(hash), when, tid);
            }
        }
        self.last = (if is_sent { hash } else { 0 }, when);
        Some(hash)
    }

    /// Sends a stack and what it refers to. False if there is no room for all; what was sent is remembered. `None` if it must not be
    /// told.
    fn send(&self, hash: u64, task: u64, sender: &mut Sender<'_>, when: When) -> Option<bool> {
        let (layout, tid) = (&self.known.interpreter.layout, sender.pid_tid as u32);
        let mut is_sent = true;
        for (_, frame) in self.chain.frames() {
            let what = What::Code(frame.code);
            if SENT.was_sent(what, when, tid) {
                continue;
            }
            if !freed::watch(layout, frame.code, self.guarded) {
                return None;
            }
            if sender.code(layout, frame.code, self.guarded) {
                SENT.remember(what, when, tid);
            } else {
                is_sent = false;
            }
        }
        let body = Body {
            depth: self.chain.depth(),
            stack: hash,
            epoch: when.epoch,
            task,
            task_at: self.runner.map_or(0, |(_, at)| at),
            end: self.chain.end(),
        };
        Some(sender.stack(body, self.chain.frames().map(|(_, frame)| frame)) && is_sent)
    }

    /// Whether the calling thread holds an interpreter lock, so that no other changes what it runs.
    fn has_lock(&self) -> bool {
        let interpreter = &self.known.interpreter;
        interpreter.layout.free_threaded == 0
            && self.known.is_finalizing(&self.memory) == Some(false)
            && python::runs_python(&self.memory, interpreter, self.state) == Some(true)
    }

    /// The hash and the name of the task that the stack runs, if it has one.
    fn task(&self) -> Option<(u64, TaskName)> {
        let (frame, _) = self.runner?;
        let interpreter = &self.known.interpreter;
        let mut name = TaskName { length: 0, width: 0, words: [0; TASK_NAME_BYTES / 8] };
        // What a frame's variables lead to is for others to change, but not while this thread has the lock.
        let is_found = if self.has_lock() {
            python::task_name(&self.memory, interpreter, frame, &mut name)
        } else {
            python::task_name(&self.guarded, interpreter, frame, &mut name)
        };
        if !is_found {
            return None;
        }
        let hash = name.words.iter().fold(u64::from(name.length), |hash, word| mix(hash, *word));
        Some((hash | 1, name))
    }
}

/// What a walk has found.
enum Walked {
    /// The interpreter is not known yet.
    Early,
    /// No Python.
    Nothing,
    Unreadable,
    /// The stack of the last call.
    Same,
    /// Another, or one whose task may be another.
    Other,
}

#[inline(always)]
fn walk<M: Again>(chain: &mut Chain, memory: &M, known: &Known, state: u64) -> Option<Compared> {
    let first = python::first_frame(memory, &known.interpreter.layout, state)?;
    Some(chain.walk(memory, first))
}

/// Sends a task's name, if this thread has not sent it before. False if there is no room for it.
fn send_task(hash: u64, name: &TaskName, sender: &mut Sender<'_>, when: When) -> bool {
    let tid = sender.pid_tid as u32;
    if SENT.was_sent(What::Task(hash), when, tid) {
        return true;
    }
    let body = TaskBody { kind: kind::TASK_BODY, rotation: when.rotation, pid_tid: sender.pid_tid, hash, name: *name };
    let is_sent = sender.writer.put(body.as_bytes(), &[]);
    if is_sent {
        SENT.remember(What::Task(hash), when, tid);
    }
    is_sent
}

//! Each thread's ring: made when the thread first has something to tell, ended when the thread ends.
//!
//! The repeated way is a look at the thread's own storage and a few plain stores: no lock, no allocation, no system call. Making a
//! ring is the exception and does all of these. Its file has all of its blocks from the beginning and its pages are mapped ahead,
//! so that a file system that fills up later cannot kill the process (a store into a hole of a full one would), and no launch but a
//! thread's first pays for a page fault.
//!
//! What cannot be written into the thread's own ring (a signal's handler that launches in the middle of a store, a ring that could
//! not be made) is counted here, and the [keeper](crate::keeper) puts the counts into its own.
//!
//! Who wants to give a ring's memory back while its thread lives has to know that nobody is writing it. The writer says so by a
//! plain store before it looks whether it is [listened to](guest::is_listening); the other side makes sure that the store is seen by
//! `membarrier`, which costs the writer nothing.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::io::ErrorKind;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;

use ktape_ebpf::inside::ring::Writer;
use ktape_ebpf::wire::tally::{self, KINDS, SLOTS};

use crate::calls::Caller;
use crate::clock;
use crate::cost::{self, Account};
use crate::cupti::names::Names;
use crate::files::{self, Mapping};
use crate::guest::{self, Guest};

/// How many threads can have a ring at a time.
pub const MOST_RINGS: usize = 4096;

/// What a thread writes to.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Where records go.
    pub(crate) writer: Writer,
    /// The texts that records of this ring can refer to.
    pub(crate) names: Names,
    /// What the thread's calls are told with, once it has called.
    pub(crate) caller: Option<Box<Caller>>,
}

/// A thread's ring, and what others may know of it.
struct Place {
    /// Whether the thread is writing. Others read it only behind a `membarrier`.
    is_busy: AtomicBool,
    mapping: Mapping,
    ring: UnsafeCell<Ring>,
}

thread_local! {
    /// The thread's ring. Null: none yet. [`NO_PLACE`]: there will be none.
    static MINE: Cell<*const Place> = const { Cell::new(null()) };
    /// What the library takes of the thread, whether it has a ring or only announces its calls. As [`MINE`], with [`NO_ACCOUNT`].
    static ACCOUNT: Cell<*const Account> = const { Cell::new(null()) };
}

/// What stands for a ring while it is made, and for one that could not be.
const NO_PLACE: *const Place = std::ptr::without_provenance(align_of::<Place>());

/// What stands for an account while it is made.
const NO_ACCOUNT: *const Account = std::ptr::without_provenance(align_of::<Account>());

/// All rings and accounts of the process. Only for when one comes or goes, and for adding up what is in the accounts.
static PLACES: Mutex<Places> = Mutex::new(Places { known: Vec::new(), accounts: Vec::new(), gone: cost::Sum::NOTHING });

struct Places {
    known: Vec<Known<Place>>,
    accounts: Vec<Known<Account>>,
    /// What the library took of threads that have ended.
    gone: cost::Sum,
}

/// What a thread has of these, for others: with the list locked, without which it does not go away.
struct Known<T>(*const T);

// SAFETY: others look at the flag and the mapping only.
unsafe impl Send for Known<Place> {}

// SAFETY: atomic words.
unsafe impl Send for Known<Account> {}

/// Numbers the process's rings.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// One more than the key whose destructor ends a thread's ring; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);
/// And than that of its account.
static ACCOUNT_KEY: AtomicU32 = AtomicU32::new(0);

/// What was lost by interval and table, other than for want of room.
static ELSEWHERE: [[AtomicU64; KINDS]; SLOTS as usize] =
    [const { [const { AtomicU64::new(0) }; KINDS] }; SLOTS as usize];

/// Has something written into this thread's ring. `None` if there is none to write to, or nobody listens; in the first case an
/// event of this table (0 for what is none) and time has been counted as seen and lost.
#[inline(always)]
pub fn with_writer<R>(table: u32, time_ns: u64, write: impl FnOnce(&mut Writer) -> R) -> Option<R> {
    with_ring(table, time_ns, |ring| write(&mut ring.writer))
}

/// As [`with_writer`], with all that belongs to the ring.
#[inline(always)]
pub(crate) fn with_ring<R>(table: u32, time_ns: u64, write: impl FnOnce(&mut Ring) -> R) -> Option<R> {
    let mut mine = MINE.get();
    if mine.is_null() {
        mine = make();
    }
    if mine == NO_PLACE {
        count_elsewhere(table, time_ns);
        return None;
    }
    // SAFETY: this thread's, so it lives until the thread ends.
    let place = unsafe { &*mine };
    if place.is_busy.load(Ordering::Relaxed) {
        count_elsewhere(table, time_ns);
        return None;
    }
    let _free = Busy::begin(&place.is_busy);
    if !guest::is_listening() {
        return None;
    }
    // SAFETY: nobody but this thread gets here, and the flag has made sure that it is not at it already.
    Some(write(unsafe { &mut *place.ring.get() }))
}

/// Takes account of a call of the program's, from here to where this goes.
#[inline(always)]
pub fn account() -> Accounted {
    let mine = ACCOUNT.get();
    if mine.is_null() {
        return Accounted { began_ns: clock::monotonic_ns(), is_first: true };
    }
    // SAFETY: this thread's, so it lives until the thread ends.
    let is_turn = mine != NO_ACCOUNT && unsafe { (*mine).is_turn() };
    Accounted { began_ns: if is_turn { clock::monotonic_ns() } else { 0 }, is_first: false }
}

/// A call of the program's that is accounted for when it goes.
#[derive(Debug)]
pub struct Accounted {
    /// 0 where it is not measured.
    began_ns: u64,
    is_first: bool,
}

impl Drop for Accounted {
    #[inline(always)]
    fn drop(&mut self) {
        if self.began_ns != 0 {
            with_account(|account| match self.is_first {
                true => account.first(self.began_ns),
                false => account.sampled(self.began_ns),
            });
        }
    }
}

/// The account of this thread. None while it is made, and where nobody listens: in a child the lock may be held for ever.
#[cold]
fn with_account(change: impl FnOnce(&Account)) {
    if ACCOUNT.get().is_null() && guest::is_listening() {
        // A signal's handler that comes in between finds this.
        ACCOUNT.set(NO_ACCOUNT);
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let account = Box::into_raw(Box::<Account>::default()).cast_const();
        set_specific(&ACCOUNT_KEY, account.cast());
        places.accounts.push(Known(account));
        ACCOUNT.set(account);
    }
    let mine = ACCOUNT.get();
    if !mine.is_null() && mine != NO_ACCOUNT {
        // SAFETY: this thread's, so it lives until the thread ends.
        change(unsafe { &*mine });
    }
}

/// CUPTI has handed a buffer over on this thread.
pub(crate) fn is_cuptis_thread() {
    with_account(Account::is_cuptis);
}

/// Adds up what the library takes of all threads but this one, which is the keeper.
pub(crate) fn cost_of_others() -> cost::Sum {
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sum = places.gone;
    for Known(account) in places.accounts.iter().filter(|known| known.0 != ACCOUNT.get()) {
        // SAFETY: in the list, so it is there.
        sum.add(unsafe { &**account });
    }
    sum
}

/// Keeps a ring marked as busy.
struct Busy<'place>(&'place AtomicBool);

impl<'place> Busy<'place> {
    #[inline(always)]
    fn begin(is_busy: &'place AtomicBool) -> Self {
        is_busy.store(true, Ordering::Relaxed);
        // For a signal's handler on this thread, and for `give_back`: see there.
        compiler_fence(Ordering::SeqCst);
        Busy(is_busy)
    }
}

impl Drop for Busy<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cold]
fn count_elsewhere(table: u32, time_ns: u64) {
    if table != 0 && guest::is_listening() {
        let slot = tally::interval(time_ns) % u64::from(SLOTS);
        ELSEWHERE[slot as usize][table as usize % KINDS].fetch_add(1, Ordering::Relaxed);
    }
}

/// Puts what was counted here into a ring.
pub(crate) fn tell_elsewhere(writer: &Writer) {
    for (slot, tables) in ELSEWHERE.iter().enumerate() {
        for (table, count) in tables.iter().enumerate() {
            if count.load(Ordering::Relaxed) != 0 {
                writer.lost_elsewhere(table as u32, slot as u64, count.swap(0, Ordering::Relaxed));
            }
        }
    }
}

/// Makes this thread's ring, or finds that it gets none.
#[cold]
fn make() -> *const Place {
    // A signal's handler that comes in between finds this.
    MINE.set(NO_PLACE);
    if let Some(guest) = guest::current().filter(|_| guest::is_listening())
        && let Some(place) = new_place(guest)
    {
        MINE.set(place);
    }
    MINE.get()
}

fn new_place(guest: &Guest) -> Option<*const Place> {
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if places.known.len() >= MOST_RINGS {
        return None;
    }
    // SAFETY: no pointers.
    let tid = unsafe { libc::gettid() } as u32;
    let (mapping, bytes) = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        match files::new_ring(&guest.directory, (guest.pid, number), guest.ring_bytes) {
            // Of the program that this process was before it called `exec`.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => break made.ok()?,
        }
    };
    // SAFETY: a new file, so zeros, mapped until the ring ends.
    let writer = unsafe { Writer::begin(mapping.address(), u64::from(bytes), (guest.pid, tid), guest.page.generation) };
    let ring = UnsafeCell::new(Ring { writer, names: Names::default(), caller: None });
    let place = Box::into_raw(Box::new(Place { is_busy: AtomicBool::new(false), mapping, ring })).cast_const();
    // Without a destructor it stays until the process ends, and so does its file.
    set_specific(&KEY, place.cast());
    places.known.push(Known(place));
    drop(places);
    guest.control.files.fetch_add(1, Ordering::Release);
    Some(place)
}

/// Has a thread's end hand this to the destructor of a key.
fn set_specific(key: &AtomicU32, value: *const c_void) {
    if let Some(key) = key.load(Ordering::Acquire).checked_sub(1) {
        // SAFETY: a key that was made, and never deleted.
        unsafe { libc::pthread_setspecific(key, value) };
    }
}

/// Has rings and accounts end with their threads. Before there is any.
pub(crate) fn prepare() {
    for (key, ends) in [(&KEY, thread_ends as extern "C" fn(*mut c_void)), (&ACCOUNT_KEY, account_ends)] {
        let mut made = 0;
        // SAFETY: writes the key. The function stays, as the library is never unmapped.
        if unsafe { libc::pthread_key_create(&raw mut made, Some(ends)) } == 0 {
            key.store(made + 1, Ordering::Release);
        }
    }
}

/// Ends the account of a thread that ends.
extern "C" fn account_ends(account: *mut c_void) {
    let taken = take_out(&ACCOUNT, account, |places| &mut places.accounts);
    let Some((account, mut places)) = taken else { return };
    places.gone.add(&account);
}

/// Ends the ring of a thread that ends.
extern "C" fn thread_ends(place: *mut c_void) {
    let Some((place, places)) = take_out(&MINE, place, |places| &mut places.known) else { return };
    if guest::is_listening() {
        place.ring.into_inner().writer.end();
    }
    // The mapping goes with the list still locked: `give_back` is not at it.
    drop(place.mapping);
    drop(places);
}

/// Takes what a thread that ends has out of its list, which stays locked. What other destructors of the thread have to tell after this
/// goes into a new one.
fn take_out<T>(
    mine: &'static LocalKey<Cell<*const T>>,
    it: *mut c_void,
    list: impl FnOnce(&mut Places) -> &mut Vec<Known<T>>,
) -> Option<(Box<T>, MutexGuard<'static, Places>)> {
    // A child has its parent's rings mapped, and they are not its own.
    if guest::is_child() {
        return None;
    }
    let it = it.cast::<T>().cast_const();
    mine.set(null());
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    list(&mut places).retain(|known| known.0 != it);
    // SAFETY: made by `new_place` or `with_account`, no longer in the list, and nobody else's.
    Some((unsafe { Box::from_raw(it.cast_mut()) }, places))
}

/// Gives the memory of all rings back, when nobody listens any more: their files are nobody's then. A thread that is writing just
/// now keeps its ring's.
pub(crate) fn give_back() {
    debug_assert!(!guest::is_listening());
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    // Whoever said that he is busy before this is seen to have said so, and whoever says so behind it sees that nobody listens.
    // SAFETY: no pointers.
    let has_been_seen = unsafe {
        let [register, barrier] = [1 << 4, 1 << 3]; // MEMBARRIER_CMD_(REGISTER_)PRIVATE_EXPEDITED
        libc::syscall(libc::SYS_membarrier, register, 0, 0) == 0
            && libc::syscall(libc::SYS_membarrier, barrier, 0, 0) == 0
    };
    if has_been_seen {
        for Known(place) in places.known.iter() {
            // SAFETY: in the list, so it is there.
            let place = unsafe { &**place };
            if !place.is_busy.load(Ordering::Acquire) {
                place.mapping.give_back();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use ktape_ebpf::inside::ring::Reader;
    use ktape_ebpf::inside::{Control, RING_SUFFIX};

    use super::*;

    /// The table that events here are of.
    const TABLE: u32 = 1;
    static INTERRUPTED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn handler(_: i32) {
        let put = with_writer(TABLE, 0, |writer| {
            writer.seen(TABLE, 0);
            assert!(writer.put(&[9; 24], &[]));
        });
        INTERRUPTED.fetch_add(usize::from(put.is_none()), Ordering::Relaxed);
    }

    fn begin(directory: &Path) {
        std::fs::write(directory.join("control"), [0; 4096]).unwrap();
        // SAFETY: a page of zeros is one.
        let control: &'static mut Control = unsafe { &mut *Box::leak(Box::new([0_u64; 512])).as_mut_ptr().cast() };
        control.ring_bytes = 1 << 24;
        let page = files::process(directory, (std::process::id(), 7), None).unwrap();
        let (directory, pid) = (directory.to_owned(), std::process::id());
        let ring_bytes = control.ring_bytes;
        prepare();
        guest::begin(Guest {
            directory,
            control,
            page,
            functions: Vec::new(),
            calls: true,
            announce: false,
            ring_bytes,
            pid,
        });
    }

    /// All records of all rings, and what was counted.
    fn read(directory: &Path) -> (Vec<Vec<u8>>, u64, u64) {
        let (mut records, mut seen, mut lost) = (Vec::new(), 0, 0);
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(RING_SUFFIX) {
                // Aligned as a mapping is.
                let bytes = std::fs::read(&path).unwrap();
                let mut aligned = vec![0_u128; bytes.len() / 16];
                // SAFETY: of the same length.
                unsafe { aligned.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                // SAFETY: lives as long as the reader.
                let mut reader = unsafe { Reader::new(aligned.as_ptr().cast(), bytes.len()) }.unwrap();
                let mut record = Vec::new();
                while reader.next(&mut record).unwrap() {
                    records.push(std::mem::take(&mut record));
                }
                seen += reader.slot(0).seen[TABLE as usize];
                lost += reader.slot(0).lost[TABLE as usize];
            }
        }
        (records, seen, lost)
    }

    /// One test, as a process has one recorder.
    #[test]
    fn a_handler_that_comes_in_between_is_counted_and_breaks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        begin(folder.path());
        // SAFETY: the handler does what it may: after the first time here, this thread has its ring.
        unsafe {
            handler(0);
            libc::signal(libc::SIGUSR2, handler as *const () as usize);
        }
        // SAFETY: no pointers.
        let thread = unsafe { libc::pthread_self() };
        let is_done = AtomicBool::new(false);
        let mut put = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one.
                    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR2) }, 0);
                    std::thread::yield_now();
                }
            });
            while INTERRUPTED.load(Ordering::Relaxed) < 100 && put < 200_000 {
                with_writer(TABLE, 0, |writer| {
                    writer.seen(TABLE, 0);
                    assert!(writer.put(&[1; 16], &[2; 8]));
                    put += 1;
                });
            }
            is_done.store(true, Ordering::Relaxed);
        });
        with_writer(0, 0, |writer| tell_elsewhere(writer));
        let (records, seen, lost) = read(folder.path());
        let interrupted = INTERRUPTED.load(Ordering::Relaxed);
        assert!(interrupted > 0, "{put}");
        assert_eq!(lost as usize, interrupted);
        assert_eq!(records.len(), seen as usize - interrupted);
        assert_eq!(records.iter().filter(|record| record[0] == 1).count(), put);
        assert!(records.iter().all(|record| *record == [9; 24] || *record == [[1; 16].as_slice(), &[2; 8]].concat()));
    }
}

//! Where each version of CPython keeps what the walk needs: one table, a row a version.

/// Where one version of CPython keeps what the walk needs. Offsets in bytes, of release builds for 64-bit machines, unless a
/// name ends in `_word`: those count eight bytes and index the part of the frame that is read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Major version in the upper byte, minor in the lower: 0x030b is 3.11.
    pub version: u16,
    /// 1 for a build without the interpreter lock (`--disable-gil`), whose objects begin with more.
    pub free_threaded: u16,

    /// `_PyRuntimeState.interpreters.head`.
    pub interpreters_head: u16,
    /// `_PyRuntimeState.autoTSSkey`, in `gilstate` before 3.12: a `Py_tss_t`, which is `{ int is_initialized; pthread_key_t }`.
    /// [`ABSENT`] from 3.15 on, where it gave way to the thread-local `_Py_tss_gilstate`.
    pub tss_key: u16,
    /// `_PyRuntimeState.gilstate.tstate_current`: who holds the interpreter lock. [`ABSENT`] from 3.12 on.
    pub current_state: u16,
    /// `PyInterpreterState.threads.head`, `tstate_head` before 3.11.
    pub threads_head: u16,
    /// `PyInterpreterState.next`.
    pub interpreter_next: u16,

    /// `PyThreadState.next`.
    pub thread_next: u16,
    /// `PyThreadState.thread_id`: what `pthread_self` returns.
    pub thread_id: u16,
    /// `PyThreadState.native_thread_id`: what `gettid` returns. [`ABSENT`] before 3.11.
    pub native_thread_id: u16,
    /// `PyThreadState._status`, whose fifth bit says that it runs Python: it holds its interpreter's lock. [`ABSENT`] before 3.12.
    pub thread_status: u16,
    /// `PyThreadState.cframe` in 3.11 and 3.12, else `frame` or `current_frame`.
    pub current_frame: u16,
    /// `_PyCFrame.current_frame`; [`ABSENT`] where the thread state points to the frame itself.
    pub cframe_current_frame: u16,

    /// `_PyInterpreterFrame.localsplus`, `PyFrameObject.f_localsplus` before 3.11: where the first argument is.
    pub frame_locals: u16,
    /// How much of a frame is read: the prefix that the words below lie in.
    pub frame_bytes: u16,
    /// `_PyInterpreterFrame.f_code` or `f_executable`, `PyFrameObject.f_code` before 3.11. From 3.14 on it is a `_PyStackRef`, a
    /// pointer with marks in its lowest bits.
    pub frame_code_word: u8,
    /// `previous`, `f_back` before 3.11.
    pub frame_previous_word: u8,
    /// `prev_instr` or `instr_ptr`, a pointer; `f_lasti`, an `int`, before 3.11.
    pub frame_instruction_word: u8,
    /// The word that `owner` lies in; `tlbc_index` is its lower half, where there is one.
    pub frame_owner_word: u8,
    /// How far to shift that word for `owner`.
    pub frame_owner_shift: u8,
    /// Bytes that one unit of `f_lasti` stands for; 0 where the instruction is a pointer.
    pub instruction_scale: u8,

    /// `PyCodeObject.co_filename`.
    pub code_file: u16,
    /// `co_qualname`, `co_name` before 3.11.
    pub code_name: u16,
    /// `co_firstlineno`.
    pub code_first_line: u16,
    /// `co_linetable`, `co_lnotab` before 3.10.
    pub code_line_table: u16,
    /// `_co_firsttraceable`; [`ABSENT`] before 3.11.
    pub code_first_traceable: u16,
    /// `co_code_adaptive`: what instruction pointers are relative to, where there is no `co_tlbc`.
    pub code_instructions: u16,
    /// `co_tlbc`, of free-threaded builds from 3.14 on: the copies of the instructions, which of them a frame runs by its
    /// `tlbc_index`. [`ABSENT`] elsewhere.
    pub code_copies: u16,

    /// `sizeof(PyObject)`: where the length of a string, of bytes and of a code object is.
    pub object_bytes: u16,
    /// How far `kind` is shifted in a string's state: behind two bits `interned`, or a byte of them.
    pub string_kind_shift: u16,
    /// `TaskObj.task_name` of `_asyncio`; [`ABSENT`] where names of tasks are not looked for.
    pub task_name: u16,
    /// `sizeof(PyASCIIObject)`: where the text of an ASCII string begins.
    pub ascii_text: u16,
    /// `sizeof(PyCompactUnicodeObject)`: where the text of another string begins, or the pointer to it.
    pub other_text: u16,
}

/// An offset of what a version doesn't have.
pub const ABSENT: u16 = u16::MAX;

const PYTHON_3_8: Layout = Layout {
    version: 0x0308,
    free_threaded: 0,
    interpreters_head: 32,
    tss_key: 0x570,
    current_state: 0x558,
    threads_head: 8,
    interpreter_next: 0,
    thread_next: 8,
    thread_id: 176,
    native_thread_id: ABSENT,
    thread_status: ABSENT,
    current_frame: 24,
    cframe_current_frame: ABSENT,
    frame_locals: 360,
    frame_bytes: 112,
    frame_code_word: 32 / 8,
    frame_previous_word: 24 / 8,
    frame_instruction_word: 104 / 8,
    frame_owner_word: 0,
    frame_owner_shift: 0,
    instruction_scale: 1,
    code_file: 104,
    code_name: 112,
    code_first_line: 40,
    code_line_table: 120,
    code_first_traceable: ABSENT,
    code_instructions: 0,
    code_copies: ABSENT,
    object_bytes: 16,
    string_kind_shift: 2,
    task_name: 120,
    ascii_text: 48,
    other_text: 72,
};

const PYTHON_3_9: Layout = Layout { version: 0x0309, tss_key: 584, current_state: 568, task_name: 160, ..PYTHON_3_8 };

const PYTHON_3_10: Layout = Layout {
    version: 0x030a,
    frame_locals: 352,
    frame_bytes: 104,
    frame_instruction_word: 96 / 8,
    instruction_scale: 2,
    task_name: 168,
    ..PYTHON_3_9
};

const PYTHON_3_11: Layout = Layout {
    version: 0x030b,
    free_threaded: 0,
    interpreters_head: 40,
    tss_key: 592,
    current_state: 576,
    threads_head: 16,
    interpreter_next: 0,
    thread_next: 8,
    thread_id: 152,
    native_thread_id: 160,
    thread_status: ABSENT,
    current_frame: 56,
    cframe_current_frame: 8,
    frame_locals: 72,
    frame_bytes: 72,
    frame_code_word: 32 / 8,
    frame_previous_word: 48 / 8,
    frame_instruction_word: 56 / 8,
    frame_owner_word: 64 / 8,
    frame_owner_shift: 8 * (69 - 64),
    instruction_scale: 0,
    code_file: 112,
    code_name: 128,
    code_first_line: 72,
    code_line_table: 136,
    code_first_traceable: 168,
    code_instructions: 184,
    code_copies: ABSENT,
    object_bytes: 16,
    string_kind_shift: 2,
    task_name: 144,
    ascii_text: 48,
    other_text: 72,
};

pub(super) const PYTHON_3_12: Layout = Layout {
    version: 0x030c,
    tss_key: 1544,
    current_state: ABSENT,
    threads_head: 72,
    thread_id: 136,
    native_thread_id: 144,
    thread_status: 24,
    cframe_current_frame: 0,
    frame_code_word: 0,
    frame_previous_word: 1,
    frame_owner_shift: 8 * (70 - 64),
    code_first_line: 68,
    code_first_traceable: 176,
    code_instructions: 192,
    ascii_text: 40,
    other_text: 56,
    ..PYTHON_3_11
};

const PYTHON_3_13: Layout = Layout {
    version: 0x030d,
    interpreters_head: 632,
    tss_key: 2160,
    threads_head: 7344,
    interpreter_next: 7264,
    thread_id: 152,
    native_thread_id: 160,
    thread_status: 32,
    current_frame: 72,
    cframe_current_frame: ABSENT,
    code_first_traceable: 184,
    code_instructions: 200,
    task_name: 128,
    ..PYTHON_3_12
};

const PYTHON_3_14: Layout = Layout {
    version: 0x030e,
    interpreters_head: 808,
    tss_key: 2336,
    interpreter_next: 7272,
    frame_locals: 80,
    frame_bytes: 80,
    frame_owner_word: 72 / 8,
    frame_owner_shift: 8 * (74 - 72),
    code_first_traceable: 192,
    code_instructions: 208,
    task_name: 136,
    ..PYTHON_3_13
};

const PYTHON_3_15: Layout = Layout {
    version: 0x030f,
    interpreters_head: 936,
    tss_key: ABSENT,
    threads_head: 7336,
    interpreter_next: 7264,
    thread_id: 176,
    native_thread_id: 184,
    ..PYTHON_3_14
};

/// What `--disable-gil` makes of a build: an object's head is of 32 bytes instead of 16, and what follows it moves.
const fn free_threaded(layout: Layout) -> Layout {
    Layout {
        free_threaded: 1,
        code_file: layout.code_file + 16,
        code_name: layout.code_name + 16,
        code_first_line: layout.code_first_line + 16,
        code_line_table: layout.code_line_table + 16,
        code_first_traceable: layout.code_first_traceable + 16,
        code_instructions: layout.code_instructions + 16,
        object_bytes: 32,
        task_name: layout.task_name + 16,
        ascii_text: layout.ascii_text + 16,
        other_text: layout.other_text + 16,
        ..layout
    }
}

/// From 3.14 on threads run copies of their own, and frames say which.
const fn with_copies(layout: Layout) -> Layout {
    Layout {
        frame_owner_shift: layout.frame_owner_shift + 32,
        code_copies: 224,
        string_kind_shift: 8,
        code_instructions: layout.code_instructions + 8,
        ..layout
    }
}

/// Every version that is supported. The offsets are what `offsetof` gives with the headers of 3.9.18, 3.10.13, 3.11.7, 3.12.1,
/// 3.13.0, 3.14.10 and 3.15.2 (`Include/internal/pycore_runtime.h`, `pycore_interp.h`, `pycore_frame.h`,
/// `Include/cpython/pystate.h`, `code.h`, `frameobject.h`, `unicodeobject.h`); those of 3.8 were only seen in processes. The
/// stacks of all were compared with Python's own, live, but for the free-threaded builds of 3.14 and 3.15, which have only
/// their headers. That a build keeps to them is for the walk at attach to find out; from 3.13 on it says most of them itself.
pub const LAYOUTS: [Layout; 11] = [
    PYTHON_3_8,
    PYTHON_3_9,
    PYTHON_3_10,
    PYTHON_3_11,
    PYTHON_3_12,
    PYTHON_3_13,
    free_threaded(PYTHON_3_13),
    PYTHON_3_14,
    with_copies(free_threaded(PYTHON_3_14)),
    PYTHON_3_15,
    with_copies(free_threaded(PYTHON_3_15)),
];

impl Layout {
    /// `PyObject.ob_type`, the last word of an object's head.
    pub const fn type_offset(&self) -> u64 {
        self.object_bytes as u64 - 8
    }

    /// `PyTypeObject.tp_dealloc`, behind the head of an object with a length, `tp_name`, `tp_basicsize` and `tp_itemsize`.
    pub const fn dealloc_offset(&self) -> u64 {
        self.object_bytes as u64 + 32
    }

    /// The row of this version, if it is supported.
    pub fn of(version: u16, free_threaded: bool) -> Option<Self> {
        LAYOUTS.iter().copied().find(|row| row.version == version && (row.free_threaded != 0) == free_threaded)
    }
}

//! Where CUPTI puts the arguments of each function.
//!
//! It hands over a structure of them, laid out as C does it, while a probe finds words in registers and on the stack. Here are the
//! arguments' sizes, function by function, so that the words come out the same. They are those of `generated_cuda_meta.h` in CUPTI
//! of CUDA 11.8, 12 and 13, which agree; `tests/inside/parameters.rs` compares.

/// Arguments that are kept: six registers, and five words of the stack.
pub(super) const MOST: usize = 11;

/// Sizes of arguments in order, and the functions that have them, without the suffix of the per-thread default stream. A digit is the size
/// and alignment. `F` is 8: the kernel that is launched. `L` is 8, aligned to 4: a `CUmemLocation` by value. `M` is 64 bytes,
/// a `CUipcMemHandle` by value, which is no word.
const SIZES: &[(&str, &str)] = &[
    ("", "cuCtxSynchronize cuProfilerStart cuProfilerStop"),
    (
        "4",
        "cuDeviceGraphMemTrim cuMemFree cuInit cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 \
         cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2",
    ),
    (
        "8",
        "cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2 cuMemcpy3D_v2 cuMemcpy3DPeer cuStreamSynchronize \
         cuEventSynchronize cuCtxSynchronize_v2 cuMemFree_v2 cuMemFreeHost cuMemHostUnregister cuMemRelease \
         cuIpcCloseMemHandle cuArrayDestroy cuMipmappedArrayDestroy cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D \
         cuCtxDisablePeerAccess cuModuleUnload cuLibraryUnload cuFuncLoad cuCtxSetCurrent cuCtxPushCurrent \
         cuCtxPushCurrent_v2 cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxDestroy cuCtxDestroy_v2 \
         cuStreamBeginCapture cuStreamEndCaptureToCig cuGraphDestroy cuGraphDestroyNode cuGraphExecDestroy",
    ),
    ("F", "cuLaunch"),
    ("44", "cuFlushGPUDirectRDMAWrites"),
    (
        "48",
        "cuCheckpointProcessLock cuCheckpointProcessCheckpoint cuCheckpointProcessRestore \
         cuCheckpointProcessUnlock",
    ),
    (
        "84",
        "cuFuncSetSharedSize cuMulticastAddDevice cuMemAlloc cuMemAllocHost cuCtxEnablePeerAccess \
         cuDevicePrimaryCtxRetain cuStreamCreate cuStreamBeginCapture_v2 cuGraphCreate",
    ),
    (
        "88",
        "cuMemcpy2DAsync_v2 cuMemcpy3DAsync_v2 cuMemcpy3DPeerAsync cuEventRecord cuCtxRecordEvent \
         cuGreenCtxRecordEvent cuCtxWaitEvent cuGreenCtxWaitEvent cuMemAlloc_v2 cuMemAllocHost_v2 \
         cuMemFreeAsync cuMemAddressFree cuMemUnmap cuMemRetainAllocationHandle cuMemPoolTrimTo \
         cuMulticastCreate cuArrayCreate cuArrayCreate_v2 cuArray3DCreate cuArray3DCreate_v2 cuMemcpy2DAsync \
         cuMemcpy3DAsync cuModuleLoad cuModuleLoadData cuModuleLoadFatBinary cuKernelGetFunction \
         cuCtxFromGreenCtx cuStreamBeginCaptureToCig cuStreamEndCapture cuGraphClone \
         cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2 cuGraphMemcpyNodeSetParams \
         cuGraphMemsetNodeSetParams cuGraphNodeSetParams cuGraphNodeSetParams_v2 cuGraphUpload cuGraphLaunch",
    ),
    ("414", "cuMemsetD8"),
    ("424", "cuMemsetD16"),
    ("444", "cuMemcpyDtoD cuMemsetD32"),
    ("484", "cuMemcpyHtoD"),
    ("818", "cuMemsetD8_v2"),
    ("828", "cuMemsetD16_v2"),
    (
        "844",
        "cuLaunchCooperativeKernelMultiDevice cuMemcpyDtoH cuCtxCreate cuCtxCreate_v2 \
         cuStreamCreateWithPriority",
    ),
    ("848", "cuMemMapArrayAsync cuMemsetD32_v2"),
    (
        "884",
        "cuEventRecordWithFlags cuStreamWaitEvent cuMemAllocManaged cuMemHostAlloc cuMemHostRegister \
         cuMemHostRegister_v2 cuMemImportFromShareableHandle cuMipmappedArrayCreate cuGraphNodeSetEnabled",
    ),
    (
        "888",
        "cuLaunchHostFunc cuMemcpy cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 \
         cuMemcpy3DWithAttributesAsync cuMemAllocAsync cuMemPoolImportPointer cuLinkComplete \
         cuModuleGetFunction cuLibraryGetKernel cuGraphNodeFindInClone cuGraphExecKernelNodeSetParams \
         cuGraphExecKernelNodeSetParams_v2 cuGraphExecChildGraphNodeSetParams cuGraphExecNodeSetParams \
         cuGraphInstantiateWithFlags cuGraphInstantiateWithParams cuGraphExecUpdate_v2",
    ),
    ("8M4", "cuIpcOpenMemHandle cuIpcOpenMemHandle_v2"),
    ("F44", "cuLaunchGrid"),
    ("4448", "cuMemcpyDtoDAsync"),
    ("4844", "cuMemcpyAtoD"),
    ("4848", "cuMemcpyHtoDAsync"),
    ("8188", "cuMemsetD8Async"),
    ("8288", "cuMemsetD16Async"),
    ("8444", "cuFuncSetBlockShape cuMemcpyDtoA"),
    ("8448", "cuMemcpyDtoHAsync"),
    ("8484", "cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuMemcpyHtoA"),
    ("8488", "cuMemsetD32Async cuMulticastUnbind"),
    (
        "8844",
        "cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2 cuMemcpyAtoH \
         cuCtxCreate_v4 cuGreenCtxCreate cuGreenCtxStreamCreate",
    ),
    ("8848", "cuSignalExternalSemaphoresAsync cuWaitExternalSemaphoresAsync cuMemPrefetchAsync"),
    (
        "8884",
        "cuLaunchHostFunc_v2 cuStreamAddCallback cuStreamWaitValue64 cuStreamWaitValue64_v2 \
         cuStreamWriteValue64 cuStreamWriteValue64_v2 cuStreamAttachMemAsync",
    ),
    (
        "8888",
        "cuMemcpyAsync cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyHtoA_v2 \
         cuMemcpyAtoH_v2 cuMemcpyDtoA_v2 cuMemcpyAtoD_v2 cuMemcpy3DBatchAsync_v2 cuMemAllocFromPoolAsync \
         cuMemCreate cuMemSetAccess cuGraphAddEmptyNode cuGraphExecMemcpyNodeSetParams \
         cuGraphExecMemsetNodeSetParams cuGraphExecUpdate",
    ),
    ("8F88", "cuLaunchKernelEx"),
    ("F448", "cuLaunchGridAsync"),
    ("44144", "cuMemsetD2D8"),
    ("44244", "cuMemsetD2D16"),
    ("44444", "cuMemsetD2D32"),
    ("84844", "cuMemcpyAtoA"),
    ("84848", "cuMemcpyHtoAAsync"),
    ("84888", "cuStreamBeginRecaptureToGraph"),
    ("88188", "cuMemsetD2D8_v2"),
    ("88288", "cuMemsetD2D16_v2"),
    ("88444", "cuMemAllocPitch cuCtxCreate_v3"),
    ("88448", "cuMemcpyAtoHAsync"),
    ("88488", "cuMemBatchDecompressAsync cuMemsetD2D32_v2 cuModuleLoadDataEx"),
    ("88884", "cuMemAllocPitch_v2"),
    (
        "88888",
        "cuMemcpyPeer cuMemcpyHtoAAsync_v2 cuMemcpyAtoHAsync_v2 cuMemcpyAtoA_v2 cuMemcpyWithAttributesAsync \
         cuMemcpy3DBatchAsync cuMemDiscardBatchAsync cuMemAddressReserve cuMemMap cuMulticastBindAddr \
         cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddHostNode cuGraphAddChildGraphNode \
         cuGraphAddEventWaitNode cuGraphAddEventRecordNode cuGraphAddExternalSemaphoresSignalNode \
         cuGraphAddExternalSemaphoresWaitNode cuGraphAddMemAllocNode cuGraphAddMemFreeNode \
         cuGraphAddBatchMemOpNode cuGraphAddNode cuGraphInstantiate cuGraphInstantiate_v2",
    ),
    ("88L48", "cuMemPrefetchAsync_v2"),
    ("848488", "cuLinkAddFile cuLinkAddFile_v2"),
    ("848888", "cuMulticastBindAddr_v2"),
    ("881888", "cuMemsetD2D8Async"),
    ("882888", "cuMemsetD2D16Async"),
    ("884888", "cuMemsetD2D32Async"),
    ("888884", "cuStreamBeginCaptureToGraph"),
    (
        "888888",
        "cuMemcpyPeerAsync cuMulticastBindMem cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode_v2 \
         cuGraphAddNode_v3",
    ),
    ("8488888", "cuMulticastBindMem_v2"),
    ("84888488", "cuLinkAddData cuLinkAddData_v2"),
    ("88884884", "cuLibraryLoadData cuLibraryLoadFromFile"),
    ("88888888", "cuMemcpyBatchAsync_v2 cuMemPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync"),
    ("888888888", "cuMemcpyBatchAsync"),
    ("F444444488", "cuLaunchCooperativeKernel"),
    ("F4444444888", "cuLaunchKernel"),
];

/// The arguments of one function.
///
/// Each is cut out of eight bytes that lie within the structure, whatever comes before or behind it in them: so all are read in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// How many are kept.
    count: u8,
    /// One more than the argument that is the kernel; 0 for none.
    pub kernel: u8,
    /// Whether the structure has no eight bytes: it is one argument of four.
    is_half: bool,
    /// Where the eight bytes begin that an argument is in.
    loads: [u8; MOST],
    /// How many bits of them are behind it.
    behind: [u8; MOST],
    /// How many are not its own.
    others: [u8; MOST],
}

impl Parameters {
    /// Those of the function with this symbol; `None` where it is not known.
    pub fn of(symbol: &str) -> Option<Parameters> {
        let base = symbol.strip_suffix("_ptsz").or_else(|| symbol.strip_suffix("_ptds")).unwrap_or(symbol);
        let is_it =
            |(_, functions): &&(&str, &str)| functions.split_ascii_whitespace().any(|function| function == base);
        SIZES.iter().find(is_it).map(|(sizes, _)| Parameters::laid_out(sizes))
    }

    fn laid_out(sizes: &str) -> Parameters {
        let mut parameters = Parameters::default();
        let mut end = 0u8;
        for size in sizes.bytes() {
            let (bytes, alignment) = match size {
                b'F' => (8, 8),
                b'L' => (8, 4),
                b'M' => (64, 1),
                digit => (digit - b'0', digit - b'0'),
            };
            let begin = end.next_multiple_of(alignment);
            end = begin + bytes;
            let index = usize::from(parameters.count);
            if bytes > 8 || index == MOST {
                continue;
            }
            // The bytes that end with it, or at the beginning of the structure those that begin with that.
            let load = end.saturating_sub(8);
            parameters.loads[index] = load;
            parameters.behind[index] = 8 * (8 - (end - load));
            parameters.others[index] = 8 * (8 - bytes);
            parameters.count += 1;
            if size == b'F' {
                parameters.kernel = parameters.count;
            }
        }
        parameters.is_half = end == 4;
        parameters
    }

    /// Where each begins, and how many bytes it has.
    pub fn places(&self) -> impl Iterator<Item = (u8, u8)> {
        let of = |index: usize| {
            let bytes = 8 - self.others[index] / 8;
            (self.loads[index] + 8 - self.behind[index] / 8 - bytes, bytes)
        };
        (0..usize::from(self.count)).map(of)
    }

    /// The words of a call: zeros behind its last argument.
    ///
    /// # Safety
    ///
    /// `structure` points to the arguments of a call of this function, as CUPTI hands them over.
    #[inline(always)]
    pub unsafe fn read(&self, structure: *const u8) -> [u64; MOST] {
        let mut words = [0; MOST];
        if self.is_half {
            // SAFETY: it has so many bytes.
            words[0] = unsafe { structure.cast::<u32>().read_unaligned() }.into();
            return words;
        }
        for (index, word) in words.iter_mut().enumerate().take(usize::from(self.count)) {
            // SAFETY: within the structure.
            let eight = unsafe { structure.add(usize::from(self.loads[index])).cast::<u64>().read_unaligned() };
            *word = eight << (self.behind[index] & 63) >> (self.others[index] & 63);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_that_a_probe_finds() {
        #[repr(C)]
        struct Launch(u64, [u32; 7], u64, u64, u64);
        let launch = Launch(0xffff_ffff_ffff, [1, 2, 3, 4, 5, u32::MAX, 7], 8, 9, 10);
        let parameters = Parameters::of("cuLaunchKernel_ptsz").unwrap();
        // SAFETY: the structure is that of a launch.
        let words = unsafe { parameters.read((&raw const launch).cast()) };
        assert_eq!(words, [0xffff_ffff_ffff, 1, 2, 3, 4, 5, u32::MAX.into(), 7, 8, 9, 10]);
        assert_eq!(parameters.kernel, 1);

        #[repr(C)]
        struct Set(u64, u8, u64, u64);
        let set = Set(1, 0xfe, 3, 4);
        let parameters = Parameters::of("cuMemsetD8Async").unwrap();
        // SAFETY: as above.
        let words = unsafe { parameters.read((&raw const set).cast()) };
        assert_eq!(words[..5], [1, 0xfe, 3, 4, 0]);

        #[repr(C)]
        struct Prefetch(u64, u64, [u32; 2], u32, u64);
        let prefetch = Prefetch(1, 2, [3, 4], 5, 6);
        let parameters = Parameters::of("cuMemPrefetchAsync_v2").unwrap();
        // SAFETY: as above.
        let words = unsafe { parameters.read((&raw const prefetch).cast()) };
        assert_eq!(words[..6], [1, 2, 4 << 32 | 3, 5, 6, 0]);

        #[repr(C)]
        struct Open(u64, [u8; 64], u32);
        let open = Open(1, [9; 64], 2);
        let parameters = Parameters::of("cuIpcOpenMemHandle_v2").unwrap();
        // SAFETY: as above.
        let words = unsafe { parameters.read((&raw const open).cast()) };
        assert_eq!(words[..3], [1, 2, 0]);
    }

    #[test]
    fn what_is_behind_the_eleventh_is_left_out() {
        let parameters = Parameters::laid_out("8888888888884444");
        assert_eq!((usize::from(parameters.count), parameters.loads[10]), (MOST, 80));
    }

    #[test]
    fn every_function_stands_there_once_and_one_without_arguments_has_none() {
        let mut all: Vec<&str> = SIZES.iter().flat_map(|(_, functions)| functions.split_ascii_whitespace()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert_eq!(Parameters::of("cuCtxSynchronize"), Some(Parameters::default()));
        assert_eq!(Parameters::of("cuNothing"), None);
        // A structure that is shorter than what is read of it would have to be read otherwise.
        assert!(
            SIZES.iter().all(|(sizes, _)| ["", "4"].contains(sizes) || sizes.contains(['8', 'F']) || sizes.len() > 1)
        );
        let four = 0xffff_fff0u32;
        // SAFETY: the structure is four bytes.
        let words = unsafe { Parameters::of("cuInit").unwrap().read((&raw const four).cast()) };
        assert_eq!(words[..2], [0xffff_fff0, 0]);
    }
}

//! A prefetch hint to the processor.

/// Prefetches memory that will be read soon. Does not wait for the memory.
#[inline]
pub(super) fn fetch<T>(soon: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        #[expect(unsafe_code)]
        // SAFETY: a prefetch affects only the caches, whatever the address is; every x86-64 processor has SSE.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(soon).cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(std::ptr::from_ref(soon));
}

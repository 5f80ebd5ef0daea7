//! Loops compiled twice: for every processor, and for those with wide registers, which are asked for when they run.
//!
//! Why: byte planes are made and read by widening and narrowing numbers, for which a plain x86-64 has no good
//! instructions. A build of this crate for AVX2 alone decoded a third and encoded a fifth faster.

/// Declares functions whose body is compiled twice. What they call is so only where it is inlined, which a closure may
/// not be: they are plain loops.
macro_rules! wide {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$type:ident: $bound:path>)? ($($argument:ident: $of:ty),* $(,)?) $(-> $out:ty)? $body:block
    )*) => {$(
        $(#[$meta])*
        $vis fn $name $(<$type: $bound>)? ($($argument: $of),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2")]
                fn wide $(<$type: $bound>)? ($($argument: $of),*) $(-> $out)? $body

                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
                    // SAFETY: this processor has what the function was compiled for; it is safe Rust otherwise.
                    return unsafe { wide($($argument),*) };
                }
            }
            $body
        }
    )*};
}
pub(crate) use wide;

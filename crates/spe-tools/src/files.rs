//! The kit's files, by their paths in it.

macro_rules! files {
    ($($path:literal <- $source:literal,)*) => {
        &[$(($path, include_str!(concat!("../", $source)))),*]
    };
}

/// All files of the kit that are the same for every build.
pub(crate) static FILES: &[(&str, &str)] = files! {
    "spu/call.h" <- "spu/lib/call.h",
    "spu/crt.c" <- "spu/lib/crt.c",
    "spu/format.c" <- "spu/lib/format.c",
    "spu/format.h" <- "spu/lib/format.h",
    "spu/host.c" <- "spu/lib/host.c",
    "spu/math.c" <- "spu/lib/math.c",
    "spu/memory.c" <- "spu/lib/memory.c",
    "spu/posix.c" <- "spu/lib/posix.c",
    "spu/scan.c" <- "spu/lib/scan.c",
    "spu/stdio.c" <- "spu/lib/stdio.c",
    "spu/stdlib.c" <- "spu/lib/stdlib.c",
    "spu/string.c" <- "spu/lib/string.c",
    "spu/tags.c" <- "spu/lib/tags.c",
    "spu/timer.c" <- "spu/lib/timer.c",
    "include/common/calloc_align.h" <- "common/calloc_align.h",
    "include/common/cbe_mfc.h" <- "common/cbe_mfc.h",
    "include/common/free_align.h" <- "common/free_align.h",
    "include/common/libmisc.h" <- "common/libmisc.h",
    "include/common/malloc_align.h" <- "common/malloc_align.h",
    "include/common/libsim.h" <- "common/libsim.h",
    "include/common/mass_simd.h" <- "common/mass_simd.h",
    "include/common/massv.h" <- "common/massv.h",
    "include/common/profile.h" <- "common/profile.h",
    "include/common/realloc_align.h" <- "common/realloc_align.h",
    "include/common/sidecore_matrix.h" <- "common/sidecore_matrix.h",
    "include/common/sidecore_sync.h" <- "common/sidecore_sync.h",
    "include/common/sidecore_vector_macros.h" <- "common/sidecore_vector_macros.h",
    "include/common/sidecore_vector_parts.h" <- "common/sidecore_vector_parts.h",
    "include/common/sidecore_vectors.h" <- "common/sidecore_vectors.h",
    "include/common/sim_printf.h" <- "common/sim_printf.h",
    "include/common/simdmath.h" <- "common/simdmath.h",
    "include/common/vec_types.h" <- "common/vec_types.h",
    "include/spu/ea.h" <- "spu/include/ea.h",
    "include/spu/sidecore_assembler.h" <- "spu/include/sidecore_assembler.h",
    "include/spu/spu_internals.h" <- "spu/include/spu_internals.h",
    "include/spu/spu_intrinsics.h" <- "spu/include/spu_intrinsics.h",
    "include/spu/spu_macros.h" <- "spu/include/spu_macros.h",
    "include/spu/spu_mfcio.h" <- "spu/include/spu_mfcio.h",
    "include/spu/spu_si.h" <- "spu/include/spu_si.h",
    "include/spu/spu_timer.h" <- "spu/include/spu_timer.h",
    "include/host/libspe.h" <- "ppu/include/libspe.h",
    "include/ppu/altivec.h" <- "ppu/include/altivec.h",
    "include/ppu/altivec_macros.h" <- "ppu/include/altivec_macros.h",
    "include/ppu/ppu_intrinsics.h" <- "ppu/include/ppu_intrinsics.h",
    "include/ppu/sidecore_assembler.h" <- "ppu/include/sidecore_assembler.h",
    "include/spu++/new" <- "spu/plus/new",
    "ppu/low.c" <- "ppu/lib/low.c",
};

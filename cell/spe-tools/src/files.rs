//! The kit's files, by their paths in it.
//!
//! They stand in five archives, each under a line `-- PATH --`: most have a few lines, and all are
//! read from the unpacked kit alone. Headers of one function each, as the SDK's libraries had them
//! next to the library's own header, are made.
//!
//! Must stay true: `NAME.h` has the function as `_NAME`, inline; the library's header adds `NAME`.
//! So a program that includes the one may have a function of its own by the other name.

use std::sync::LazyLock;

/// All files of the kit that are the same for every build: path and text.
pub(crate) static FILES: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let mut files: Vec<_> = ARCHIVES
        .iter()
        .flat_map(|archive| files_of(archive))
        .collect();
    for (path, of) in ALSO {
        let text = files.iter().find(|file| file.0 == of).map(|file| file.1);
        files.extend(text.map(|text| (path, text)));
    }
    files
});

/// The files of an archive.
fn files_of(archive: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut rest = archive.strip_prefix("-- ");
    std::iter::from_fn(move || {
        let (path, behind) = rest?.split_once(" --\n")?;
        match behind.find("\n-- ") {
            Some(end) => {
                rest = behind.get(end + "\n-- ".len()..);
                behind.get(..=end).map(|text| (path, text))
            }
            None => {
                rest = None;
                Some((path, behind))
            }
        }
    })
}

static ARCHIVES: [&str; 5] = [
    include_str!("../common.txtar"),
    include_str!("../spu/include.txtar"),
    include_str!("../spu/lib.txtar"),
    include_str!("../ppu/include.txtar"),
    include_str!("../ppu/host.txtar"),
];

/// Further paths of files, and the paths that they have in an archive.
const ALSO: [(&str, &str); 2] = [
    ("include/common/sidecore_altivec.h", "include/ppu/altivec.h"),
    ("sdk/buildutils/make.footer", "sdk/make.footer"),
];

/// A library: the header with all its functions, and their names.
pub(crate) struct Library {
    /// Header that names the functions without the underscore; its text is made.
    pub(crate) header: &'static str,
    /// Header that has them.
    pub(crate) inside: &'static str,
    pub(crate) functions: &'static [&'static str],
}

/// Libraries that consist of such headers.
pub(crate) const LIBRARIES: &[Library] = &[
    Library {
        header: "libgmath",
        inside: "sidecore_gmath",
        functions: &[
            "cos14", "cos14_v", "cos18", "cos18_v", "cos8", "cos8_v", "sin14", "sin14_v", "sin18",
            "sin18_v", "sin8", "sin8_v",
        ],
    },
    Library {
        header: "libmisc",
        inside: "sidecore_misc",
        functions: &[
            "calloc_align",
            "clamp",
            "clamp_0_to_1",
            "clamp_0_to_1_v",
            "clamp_minus1_to_1",
            "clamp_minus1_to_1_v",
            "clamp_v",
            "copy_from_ls",
            "copy_to_ls",
            "free_align",
            "load_vec_unaligned",
            "malloc_align",
            "max_float_v",
            "max_int_v",
            "max_vec_float3",
            "max_vec_float4",
            "max_vec_int3",
            "max_vec_int4",
            "min_float_v",
            "min_int_v",
            "min_vec_float3",
            "min_vec_float4",
            "min_vec_int3",
            "min_vec_int4",
            "rand_0_to_1",
            "rand_0_to_1_v",
            "rand_minus1_to_1",
            "rand_minus1_to_1_v",
            "rand_v",
            "realloc_align",
            "srand_v",
            "store_vec_unaligned",
        ],
    },
    Library {
        header: "libmpm",
        inside: "sidecore_mpm",
        functions: &[
            "mpm_abs",
            "mpm_add",
            "mpm_add2",
            "mpm_add3",
            "mpm_add_partial",
            "mpm_cmpeq",
            "mpm_cmpeq2",
            "mpm_cmpge",
            "mpm_cmpge2",
            "mpm_cmpgt",
            "mpm_cmpgt2",
            "mpm_div",
            "mpm_div2",
            "mpm_fixed_mod_reduction",
            "mpm_gcd",
            "mpm_madd",
            "mpm_mod",
            "mpm_mod_exp",
            "mpm_mod_exp2",
            "mpm_mod_exp3",
            "mpm_mont_mod_exp",
            "mpm_mont_mod_exp2",
            "mpm_mont_mod_exp3",
            "mpm_mont_mod_mul",
            "mpm_mul",
            "mpm_mul_inv",
            "mpm_mul_inv2",
            "mpm_mul_inv3",
            "mpm_neg",
            "mpm_sizeof",
            "mpm_square",
            "mpm_sub",
            "mpm_sub2",
            "mpm_swap_endian",
        ],
    },
    Library {
        header: "libvector",
        inside: "sidecore_matrix",
        functions: &[
            "clip_ray",
            "clipcode_ndc",
            "clipcode_ndc_v",
            "cross_product3",
            "cross_product3_v",
            "cross_product4",
            "dot_product3",
            "dot_product3_v",
            "dot_product4",
            "dot_product4_v",
            "inv_length_vec3",
            "inv_length_vec3_v",
            "length_vec3",
            "length_vec3_v",
            "lerp_vec",
            "load_vec_float4",
            "load_vec_int4",
            "normalize3",
            "normalize3_v",
            "normalize4",
            "reflect_vec3",
            "reflect_vec3_v",
            "sum_across_float3",
            "sum_across_float4",
            "xform_norm3",
            "xform_norm3_v",
            "xform_vec3",
            "xform_vec3_v",
            "xform_vec4",
            "xform_vec4_v",
        ],
    },
    Library {
        header: "libmatrix",
        inside: "sidecore_matrix",
        functions: &[
            "cast_matrix4x4_to_dbl",
            "cast_matrix4x4_to_flt",
            "frustum_matrix4x4",
            "identity_matrix4x4",
            "inverse_matrix4x4",
            "mult_matrix4x4",
            "mult_quat",
            "ortho_matrix4x4",
            "perspective_matrix4x4",
            "quat_to_rot_matrix4x4",
            "rot_matrix4x4_to_quat",
            "rotate_matrix4x4",
            "scale_matrix4x4",
            "slerp_quat",
            "splat_matrix4x4",
            "transpose_matrix4x4",
        ],
    },
    Library {
        header: "libsync",
        inside: "sidecore_sync",
        functions: &[
            "atomic_add",
            "atomic_add_return",
            "atomic_dec",
            "atomic_dec_and_test",
            "atomic_dec_if_positive",
            "atomic_dec_return",
            "atomic_inc",
            "atomic_inc_return",
            "atomic_read",
            "atomic_set",
            "atomic_sub",
            "atomic_sub_and_test",
            "atomic_sub_return",
            "complete",
            "complete_all",
            "cond_broadcast",
            "cond_init",
            "cond_signal",
            "cond_wait",
            "init_completion",
            "mutex_init",
            "mutex_lock",
            "mutex_trylock",
            "mutex_unlock",
            "read_lock",
            "read_trylock",
            "read_unlock",
            "rwlock_init",
            "spin_lock",
            "spin_trylock",
            "spin_unlock",
            "wait_for_completion",
            "write_lock",
            "write_trylock",
            "write_unlock",
        ],
    },
];

impl Library {
    /// All headers: names without their ends, and texts.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let inside = format!("#include <{}.h>\n", self.inside);
        let names = self.functions.iter();
        let aliases: String = names
            .map(|name| format!("#define {name} _{name}\n"))
            .collect();
        let guard = format!("_{}_H_", self.header.to_uppercase());
        let all = format!("#ifndef {guard}\n#define {guard}\n{inside}{aliases}#endif\n");
        let each = self
            .functions
            .iter()
            .map(move |name| (*name, inside.clone()));
        each.chain([(self.header, all)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_cut_at_their_headings_alone() {
        let files = files_of("-- a.h --\nint a;\n-- b/c.h --\n -- no heading --\n");
        let wanted = [("a.h", "int a;\n"), ("b/c.h", " -- no heading --\n")];
        assert!(files.eq(wanted));
        for archive in ARCHIVES {
            let bytes =
                files_of(archive).map(|(path, text)| "-- ".len() + path.len() + 4 + text.len());
            assert_eq!(bytes.sum::<usize>(), archive.len());
        }
    }

    #[test]
    fn each_path_stands_once() {
        let mut paths = FILES.iter().map(|(path, _)| path).collect::<Vec<_>>();
        paths.sort();
        assert!(paths.windows(2).all(|two| two[0] != two[1]));
        assert!(ALSO.iter().all(|(path, _)| paths.contains(&path)));
        assert!(paths.len() > 90, "{}", paths.len());
    }
}

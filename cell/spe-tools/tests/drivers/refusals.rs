//! Source of the time: unchanged, with an SPU's numbers, or refused. Errors, and the cache.

use crate::common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn refusals_say_why() {
    let Some(folder) = folder() else { return };
    let refused = |name: &str, arguments: &str, reason: &str| {
        let output = driver(folder.path(), name, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{name} {arguments}: {errors}"
        );
        assert!(errors.contains(reason), "{name} {arguments}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    };
    refused("spu-as", "-o a.o a.s", "cannot read a.s");
    refused("spu-as", "", "usage: spu-as");
    std::fs::write(folder.path().join("part.s"), "part: nop\n").expect("files are written");
    driven(folder.path(), "spu-gcc", "-c part.s");
    for part in ["part.s", "part.o"] {
        let call = format!("-o mixed empty.c {part}");
        refused("spu-gcc", &call, "C and SPU assembly do not go into one");
        refused("spu-gcc", &call, &format!("empty.c and {part}: C and"));
        refused(
            "spu-gcc",
            &call,
            "compile the C of empty.c by a compiler for the SPU",
        );
        refused(
            "spu-gcc",
            &format!("-r -o joined {part}"),
            "not to one object",
        );
    }
    refused(
        "spu-gcc",
        "--lanes=most -c empty.c",
        "--lanes=auto|exact|off",
    );
    refused("ppu-gcc", "--pointers=2 -c empty.c", "--pointers=4|8");
    refused("ppu-embedspu", "-m32 one", "usage: ppu-embedspu");
    refused(
        "ppu-embedspu",
        "one empty.c two.o",
        "empty.c is no ELF file",
    );
    let mut image = b"\x7fELF\x01\x02\x01".to_vec();
    image.resize(52, 0);
    image[18..20].copy_from_slice(&[0, 23]);
    std::fs::write(folder.path().join("real"), image).expect("files are written");
    driven(folder.path(), "spu-gcc", "-o whole library.c -lm");
    let whole = std::fs::read(folder.path().join("whole")).expect("is read");
    for bytes in [20, 51, 60, 200, whole.len() / 2] {
        std::fs::write(folder.path().join("cut"), &whole[..bytes]).expect("is written");
        refused("embedspu", "one cut two.o", "cut is cut off; link it again");
    }
    refused(
        "embedspu",
        "one real two.o",
        "real ELF type 0 of the SPU, not an executable (2)",
    );
}

#[test]
fn an_error_of_the_compiler_is_the_drivers() {
    let Some(folder) = folder() else { return };
    std::fs::write(folder.path().join("wrong.c"), "\nvector float x = y;\n").expect("is written");
    let output = driver(folder.path(), "spu-gcc", "-c wrong.c");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("wrong.c:2:"), "{errors}");
}

/// Leftovers of a killed process in the cache go at the next one's work.
#[test]
fn folders_of_killed_processes_are_removed() {
    let Some(folder) = folder() else { return };
    let cache = folder.path().join("cache");
    let run = |name: &Path, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).current_dir(folder.path());
        command
            .env("SIDECORE_SPE_CACHE", &cache)
            .output()
            .expect("starts")
    };
    // No process has this number; one has this test's.
    let (dead, live) = (4_190_000_000_u32, std::process::id());
    let make = |path: PathBuf| {
        std::fs::create_dir_all(path.join("include")).expect("folders are made");
        path
    };
    let left = [dead, live].map(|number| make(cache.join(format!("unpacking-{number}"))));
    let output = run(&program(), &[]);
    assert!(output.status.success() && !left[0].exists() && left[1].exists());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kit = text
        .split('\'')
        .nth(1)
        .map(PathBuf::from)
        .expect("the path");
    let left = make(kit.with_file_name(format!("work-{dead}")));
    std::fs::write(folder.path().join("main.c"), "int main() { return 0; }\n").expect("written");
    let output = run(&kit.join("spu-gcc"), &["-o", "image", "main.c"]);
    assert!(output.status.success() && !left.exists(), "{output:?}");
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder for the test");
    let run = || {
        let mut command = Command::new(program());
        command
            .env("SIDECORE_SPE_CACHE", folder.path())
            .output()
            .expect("the example runs")
    };
    assert!(run().status.success());
    let kit = std::fs::read_dir(folder.path())
        .expect("the kit is there")
        .flatten()
        .next();
    let kit = kit.expect("one kit is there").path();
    std::fs::set_permissions(&kit, std::fs::Permissions::from_mode(0o777)).expect("is changed");
    let output = run();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("mode 777"), "{errors}");
}

/// Compiles a source of an SPU's and returns what its image prints.
fn printed(folder: &Path, name: &str, options: &str, source: &str) -> String {
    write(folder, name, source);
    let tool = if name.ends_with(".c") {
        "spu-gcc"
    } else {
        "spu-g++"
    };
    driven(folder, tool, &format!("{options} -o image {name}"));
    ran(folder, "image", &[]).0
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("files are written");
}

const SHORTS: &str = "\
#include <spu_intrinsics.h>
#include <stdio.h>
static vector unsigned short in = {0x0102, 0x0304, 0x0506, 0x0708, 9, 10, 11, 12};
static unsigned int arg(int n, vector unsigned int v) { return spu_extract(v, n); }
static vector unsigned int ret(vector unsigned short v) { return v; }
struct s { vector unsigned int v; };
";

#[test]
fn conversions_without_a_cast_keep_the_register() {
    let Some(folder) = folder() else { return };
    let source = format!(
        "{SHORTS}int main(void) {{
	vector unsigned int a, b; struct s s = {{ in }}, t;
	vector unsigned int list[] = {{ in, spu_add(in, in) }};
	a = b = in; t.v = a[0] ? in : spu_add(in, in);
	printf(\"%x %x %x %x %x\\n\", spu_extract(a, 0), spu_extract(s.v, 0), spu_extract(t.v, 0),
		spu_extract(list[1], 0), arg(0, spu_add(in, in)));
	printf(\"%x %x\\n\", spu_extract(ret(in), 1), arg(1, in));
	return 0;
}}\n"
    );
    let wanted = "1020304 1020304 1020304 2040608 2040608\n5060708 5060708\n";
    for (name, options) in [
        ("a.c", "-O0"),
        ("a.c", "-O2 --lanes=exact"),
        ("a.cpp", "-O2"),
    ] {
        let found = printed(folder.path(), name, options, &source);
        assert_eq!(found, wanted, "{name} {options}");
    }
    // A vector of one size alone has a name here; the intrinsic's result has another.
    let source = "#include <spu_intrinsics.h>\n#include <stdio.h>\n\
        int main(void) { vector unsigned int a = spu_maskb(0x8000); \
        printf(\"%x\\n\", spu_extract(a, 0)); return 0; }\n";
    let cast = source.replace("= spu_", "= (vector unsigned int)spu_");
    for source in [source, &cast] {
        assert_eq!(printed(folder.path(), "b.c", "-O1", source), "ff000000\n");
    }
}

#[test]
fn conversions_keep_the_register_wherever_they_stand() {
    let Some(folder) = folder() else { return };
    for (driver, options) in [
        ("spu-gcc", "-O0 converted.c"),
        ("spu-gcc", "-O2 -Wall -Werror converted.c"),
        ("spu-gcc", "-O2 -DLOOKS converted.c"),
        ("spu-gcc", "-O1 --lanes=exact converted.c"),
        ("spu-g++", "-O0 converted.cc"),
        ("spu-g++", "-O2 -Wall -Werror converted.cc"),
    ] {
        driven(folder.path(), driver, &format!("{options} -o image"));
        let ended = ran(folder.path(), "image", &[]);
        assert_eq!(ended, (String::new(), 0), "{driver} {options}");
    }
}

#[test]
fn conversions_that_no_cast_can_say_are_refused() {
    let Some(folder) = folder() else { return };
    for (name, line, wanted) in [
        (
            "a.c",
            "vector unsigned int f(vector unsigned int v) { return v + in; }",
            "7: error: lanes: a vector of ",
        ),
        (
            "a.cpp",
            "void g(vector unsigned int); void g(float); void f() { g(in); }",
            "7: error: lanes: a vector of ",
        ),
        (
            "k.c",
            "int k(n, v) int n; vector unsigned int v; { return n; }",
            "7: error: lanes: `k` takes vectors",
        ),
        (
            "f.c",
            "typedef int t(vector unsigned int); int f(vector unsigned short); t *g = (t *)f;",
            "7: error: lanes: a function becomes one of other vectors",
        ),
        (
            "h.c",
            "int h(void) { return undeclared(1, in); }",
            "7: error: lanes: `undeclared` gets a vector and is not declared",
        ),
        (
            "u.c",
            "union { vector unsigned int w; long long l[2]; } u; int h(void) { return u.l[0]; }",
            "7: error: lanes: `l` shares memory with elements of size 4, whose bytes have other \
             places; cast the vector to one with elements of the wanted size, or let --lanes=warn",
        ),
        (
            "v.c",
            "int h(vector unsigned int w) { return *((unsigned char *)&w + 1); }",
            "7: error: lanes: elements of size 4 are read as elements of size 1 in memory; cast",
        ),
        (
            "w.c",
            "int h(vector unsigned int v) { return *((unsigned char *)&v + 1); }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "r.cpp",
            "void h(vector unsigned int w) { reinterpret_cast<vector unsigned short &>(w) = in; }",
            "7: error: lanes: a reference to a vector of other elements looks at memory; cast the",
        ),
        (
            "s.cpp",
            "void h(vector unsigned int v) { reinterpret_cast<vector unsigned short &>(v) = in; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "x.c",
            "vector unsigned char b[2]; void x(void) { *(vector unsigned int *)&b[1] = ret(in); }",
            "7: error: lanes: elements of size 1 are read as elements of size 4 in memory; cast",
        ),
        (
            "z.c",
            "typedef vector unsigned short *h; \
             int z(vector unsigned int w) { h p = (h)&w; return p[0][0]; }",
            "7: error: lanes: elements of size 4 are read as elements of size 2 in memory; cast",
        ),
        (
            "y.c",
            "int y(vector unsigned int w) \
             { __typeof__(in) *p = (__typeof__(in) *)&w; return p[0][0]; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "t.c",
            "int t(vector unsigned int w) \
             { __typeof__(&in) p = (__typeof__(&in))&w; return p[0][0]; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "c.c",
            "void c(void *d, void *s) { __builtin_memcpy(d, s, 16); } \
             void e(vector unsigned int w) { c(&w, &in); }",
            "7: error: lanes: elements of size 2 are read as elements of size 4 in memory; cast",
        ),
        (
            "d.c",
            "void d(void *p) { vector unsigned int *q = p; q[0] = q[1]; } void e(void) { d(&in); }",
            "7: error: lanes: elements of size 2 are read as elements of size 4 in memory; cast",
        ),
        (
            "d.cpp",
            "void d(void *p) { static_cast<vector unsigned int *>(p)[0] += 1; } \
             void e() { d(&in); }",
            "7: error: lanes: elements of size 2 are read as elements of size 4 in memory; cast",
        ),
        (
            "n.c",
            "typedef __typeof__(in) t; int n(vector unsigned int w) { t *p = (t *)&w; \
             return p[0][0]; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "t.cpp",
            "template <class T> T t(vector unsigned int &w) { return *reinterpret_cast<T *>(&w); } \
             int u(vector unsigned int w) { return t<vector unsigned short>(w)[0]; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "e.cpp",
            "template <class T> T &e(vector unsigned int &w) { return reinterpret_cast<T &>(w); } \
             int u(vector unsigned int w) { return e<vector unsigned short>(w)[0]; }",
            "lanes: elements of another size are read in memory; cast the vector itself",
        ),
        (
            "p.c",
            "void p(const char *format) { printf(format, 1, in); }",
            "a vector is printed by a format that is not written in the call",
        ),
    ] {
        write(folder.path(), name, &format!("{SHORTS}{line}\n"));
        let output = driver(folder.path(), "spu-gcc", &format!("-c {name}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{line}");
        assert!(errors.contains(&format!("{name}:7:")), "{errors}");
        assert!(errors.contains(wanted), "{errors}");
    }
}

#[test]
fn vectors_lie_where_an_spu_finds_them() {
    let Some(folder) = folder() else { return };
    let source = "\
#include <spu_intrinsics.h>
#include <stdio.h>
static unsigned char b[64] __attribute__((aligned(16)));
#define OWN __attribute__((noinline)) static
OWN vector unsigned char load(unsigned char *p) { return *(vector unsigned char *)p; }
OWN int one(unsigned char *p) { return spu_extract(*(vector unsigned char *)p, 3); }
OWN int fixed(void) { return spu_extract(*(vector unsigned char *)&b[37], 1); }
OWN int named(unsigned char *p)
{
	vector unsigned char *v = (vector unsigned char *)p;
	return spu_extract(v[1], 3);
}
OWN void store(unsigned char *p, vector unsigned char v)
{
	vector unsigned char *q = (vector unsigned char *)p;
	*q = v;
}
int main(void)
{
	int i;
	for (i = 0; i < 64; i++) b[i] = i;
	printf(\"%d %d %d \", spu_extract(load(b + 21), 0), one(b + 21), named(b + 21));
	printf(\"%d \", fixed());
	store(b + 21, spu_splats((unsigned char)7));
	printf(\"%d %d %d\\n\", b[15], b[16], b[32]);
	return 0;
}
";
    for options in ["-O0", "-O2", "-O2 --lanes=exact"] {
        assert_eq!(
            printed(folder.path(), "a.c", options, source),
            "16 19 35 33 15 7 32\n"
        );
    }
    // The same by a source that looks at addresses itself, and so keeps their last bits.
    let looks = source.replace(
        "named(b + 21)",
        "named(b + 21) - 5 + (5 & (int)(b + 21) & 15)",
    );
    assert_eq!(
        printed(folder.path(), "a.c", "-O2", &looks)
            .split(' ')
            .nth(2),
        Some("35")
    );
    let host = "\
#include <altivec.h>
#include <stdio.h>
static unsigned char a[64] __attribute__((aligned(16)));
int main(void)
{
	volatile int off = 15;
	vector unsigned char *p = (vector unsigned char *)(a + off);
	*p = (vector unsigned char){1, 2};
	return a[0] != 1 || a[15] != 0 || a[16] != 0;
}
";
    write(folder.path(), "host_stores.c", host);
    driven(folder.path(), "ppu-gcc", "-O2 -m64 -o stores host_stores.c");
    let status = Command::new(folder.path().join("stores")).status();
    assert!(status.expect("it starts").success());
}

#[test]
fn formats_may_print_vectors_and_numbers() {
    let Some(folder) = folder() else { return };
    let source = "\
#include <spu_intrinsics.h>
#include <stdio.h>
int main(void)
{
	vector float f = {1, 2, 3, 4}, g = {5, 6, 7, 8};
	vector signed int i = {10, 20, 30, 40};
	printf(\"%vf|%f|%*d|%vld|%d|%f\\n\", f, g, 4, i, i, i, 2.5);
	return 0;
}
";
    let wanted = "1.000000 2.000000 3.000000 4.000000|5.000000|  10|10 20 30 40|10|2.500000\n";
    assert_eq!(printed(folder.path(), "a.c", "-O2", source), wanted);
}

#[test]
fn source_of_old_compilers_compiles_unchanged() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    let operator = "\
#include <spu_intrinsics.h>
struct V { vec_float4 m; V(float x); V &operator =(const V &v); vec_float4 cut(); };
inline V &V::operator =(const V &v) { m = v.m; return *this; }
inline V::V(float x) { m = (vec_float4){ x, 2, 3, 0.0f }; }
inline vec_float4 V::cut() { return spu_sel(m, spu_splats(-1.0f), (vec_uint4)spu_maskb(0x000f)); }
int main() { V v(1), w(2); w = v; return (int)spu_extract(w.cut(), 3); }
";
    write(folder, "operator.cpp", operator);
    driven(folder, "spu-g++", "-o image operator.cpp");
    assert_eq!(ran(folder, "image", &[]).1 & 0xff, 0xff);

    let aligned = "#include <stdio.h>\n\
        typedef struct { int a[5]; } item __attribute__((aligned(16)));\n\
        static item list[4];\n\
        int main(void) { printf(\"%d %d\\n\", (int)sizeof list, (int)(long)list & 15); \
        return 0; }\n";
    assert_eq!(printed(folder, "aligned.c", "-O1", aligned), "80 0\n");

    let old = "#include <algorithm>\n#include <stdio.h>\n\
        int main() { char a[4]; memset(a, 0, 4); \
        return std::min((int)strlen(a), INT_MAX) + abs(0); }\n";
    write(folder, "old.cpp", old);
    driven(folder, "spu-g++", "-c old.cpp");
    driven(folder, "ppu-g++", "-c old.cpp");
}

#[test]
fn a_programs_own_library_is_linked_by_a_name_of_the_sdks() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    write(folder, "own.c", "int own(int a) { return a + 41; }\n");
    write(
        folder,
        "use.c",
        "int own(int); int main(void) { return own(1) != 42; }\n",
    );
    for (side, library) in [("spu", "vector"), ("ppu", "misc"), ("spu-elf", "misc")] {
        let compiler = if side == "spu-elf" {
            "spu-elf-gcc".into()
        } else {
            format!("{side}-gcc")
        };
        driven(folder, &compiler, "-c own.c");
        driven(
            folder,
            &format!("{side}-ar"),
            &format!("cr lib{library}.a own.o"),
        );
        driven(
            folder,
            &compiler,
            &format!("use.c -L . -l{library} -o used"),
        );
        std::fs::remove_file(folder.join(format!("lib{library}.a"))).expect("it was made");
    }
    // An archive of the Cell's own code is none to link.
    write(
        folder,
        "libmisc.a",
        "!<arch>\n\x7fELF\x01\x02\x01..........\x02\x00\x17",
    );
    write(folder, "main.c", "int main(void) { return 0; }\n");
    driven(folder, "spu-gcc", "main.c -L. -lmisc -o used");
}

#[test]
fn names_and_options_of_the_compilers_are_known() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    let lines = |names: &[&str]| -> String {
        let line = |name: &&str| format!("#ifndef {name}\n#error {name}\n#endif\n");
        names.iter().map(line).collect()
    };
    write(
        folder,
        "spu.c",
        &lines(&["__VECTOR_KEYWORD_SUPPORTED__", "__EA32__"]),
    );
    driven(folder, "spu-gcc", "-c spu.c");
    write(folder, "edp.c", &lines(&["__SPU_EDP__"]));
    driven(folder, "spu-gcc", "-march=celledp -c edp.c");
    let both = [
        "__powerpc__",
        "__PPC__",
        "__PPC",
        "_ARCH_PPC",
        "__APPLE_ALTIVEC__",
    ];
    write(folder, "ppu.c", &lines(&both));
    driven(folder, "ppu-gcc", "-m32 -c ppu.c");
    driven(folder, "ppu-gcc", "-m64 -c ppu.c");
    write(folder, "wide.c", &lines(&["__powerpc64__", "__PPC64__"]));
    driven(folder, "ppu-gcc", "-m64 -c wide.c");
    // IBM's compilers write dependencies while they compile.
    driven(folder, "spuxlc", "-M -ma -c -o own.o empty.c");
    let object = std::fs::read(folder.join("own.o")).expect("it is compiled");
    assert!(object.starts_with(b"\x7fELF") && folder.join("own.d").exists());
}

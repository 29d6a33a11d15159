//! Compiles `src/printf.c`: Rust cannot define a function with variable arguments yet.

fn main() {
    println!("cargo::rerun-if-changed=src/printf.c");
    cc::Build::new()
        .file("src/printf.c")
        .warnings(true)
        .compile("sidecore_z_printf");
    // A preloaded library must not take the place of libz.so.1 by its name: programs may still open
    // that one. All calls inside go to this library, whatever else defines the names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore_z.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Thread-local values may be dropped after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

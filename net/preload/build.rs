//! Options of the linker for a preloaded library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Loaded by its path alone: no program is linked with it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore_net_preload.so");
    // Internal calls go to this library's own functions, even if other libraries define the names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Otherwise thread-local data might be dropped after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

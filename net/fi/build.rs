//! Options of the linker for a provider.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore-fi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // libfabric unloads providers at exit, possibly before thread-local data of this library is
    // dropped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! Options of the linker for a provider.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore-fi.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // libfabric unloads it at the end; what threads keep may be dropped after that otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

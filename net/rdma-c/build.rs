//! Sets the soname, by which linked programs find the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore_rdma.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Otherwise thread-local data might be dropped after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

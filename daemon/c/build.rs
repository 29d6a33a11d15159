//! Names the shared object, so that programs which were linked with it find it again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Thread-local values may be dropped after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

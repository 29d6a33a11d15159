//! Names the shared object as BEAGLE's clients ask for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhmsbeagle.so.1");
    // Internal calls go to this library's own functions, even if another BEAGLE is loaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads of the engines may run after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

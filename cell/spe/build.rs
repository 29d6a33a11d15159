//! Names the shared object as programs linked with `-lspe2` ask for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libspe2.so.2");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads and signal handlers of this library may run after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

//! Options of the linker for a preloaded library.

fn main() {
    // All calls inside go to this library's own functions, whatever else defines the names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // What threads keep may be dropped after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}

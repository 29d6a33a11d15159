//! Programs of the examples: built by gcc, loaded into contexts, run by threads.

#[path = "../../tests/common/gcc.rs"]
mod gcc;

use spe2::api::{
    SpeContext, spe_context_create, spe_context_destroy, spe_context_run, spe_image_open,
    spe_program_load,
};
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::thread::JoinHandle;

const FLAG_MAP_PS: u32 = 0x40;

/// A program in a folder of its own, which goes with the value.
pub(crate) struct Program {
    folder: PathBuf,
    path: CString,
}

impl Program {
    /// Builds `NAME.c` of `tests/programs.txtar` for the store.
    pub(crate) fn build(name: &str) -> Program {
        let folder = std::env::temp_dir().join(format!("spe-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(name);
        gcc::unpack(&folder);
        let built = Command::new("gcc")
            .args(gcc::OPTIONS)
            .arg("-o")
            .arg(&path)
            .arg(folder.join(format!("{name}.c")))
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "gcc -mx32 builds"
        );
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        Program { folder, path }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A context's address, for threads.
#[derive(Clone, Copy)]
pub(crate) struct Spe(usize);

impl Spe {
    pub(crate) fn load(program: &Program) -> Spe {
        // SAFETY: valid arguments; the context lives until `destroy`.
        unsafe {
            let image = spe_image_open(program.path.as_ptr());
            assert!(!image.is_null(), "the program opens");
            let spe = spe_context_create(FLAG_MAP_PS, null_mut());
            assert_eq!(spe_program_load(spe, image), 0, "the program loads");
            Spe(spe as usize)
        }
    }

    pub(crate) fn pointer(self) -> *mut SpeContext {
        self.0 as *mut SpeContext
    }

    /// Runs it in a thread, which does `first` before.
    pub(crate) fn start(self, argp: usize, envp: usize, first: fn()) -> JoinHandle<i32> {
        std::thread::spawn(move || {
            first();
            let mut entry = u32::MAX;
            let (argp, envp) = (argp as *mut c_void, envp as *mut c_void);
            // SAFETY: a loaded context.
            unsafe { spe_context_run(self.pointer(), &mut entry, 0, argp, envp, null_mut()) }
        })
    }

    pub(crate) fn destroy(self) {
        // SAFETY: it is in no other use any more.
        unsafe { spe_context_destroy(self.pointer()) };
    }
}

/// Waits for a program's end, which must be that of its main.
pub(crate) fn exits(thread: JoinHandle<i32>) {
    assert_eq!(thread.join().ok(), Some(0), "the program exits");
}

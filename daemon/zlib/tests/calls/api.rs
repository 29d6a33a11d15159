//! The functions of a zlib, as pointers: this library's and those of the system's.

use libc::{c_char, c_int, c_long, c_uchar, c_uint, c_ulong, c_void};
use libz_rs_sys::{gz_headerp, gzFile, in_func, out_func, z_stream, z_streamp};

type Text = *const c_char;

macro_rules! api {
    ($(fn $name:ident($($kind:ty),*) -> $result:ty;)*) => {
        /// One zlib.
        #[allow(non_snake_case)]
        pub(crate) struct Api {
            pub(crate) name: &'static str,
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($kind),*) -> $result,)*
        }

        impl Api {
            pub(crate) fn ours() -> Self {
                Self { name: "ours", $($name: sidecore_z::$name,)* }
            }

            /// The functions of a library that stays loaded.
            fn of(library: &libloading::os::unix::Library) -> Option<Self> {
                // SAFETY: zlib's functions have these types, whatever its version.
                unsafe {
                    Some(Self {
                        name: "zlib",
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).ok()?,)*
                    })
                }
            }
        }
    };
}

api! {
    fn zlibVersion() -> Text;
    fn deflateInit2_(z_streamp, c_int, c_int, c_int, c_int, c_int, Text, c_int) -> c_int;
    fn deflate(z_streamp, c_int) -> c_int;
    fn deflateEnd(z_streamp) -> c_int;
    fn deflateReset(z_streamp) -> c_int;
    fn deflateCopy(z_streamp, z_streamp) -> c_int;
    fn deflateParams(z_streamp, c_int, c_int) -> c_int;
    fn deflateTune(z_streamp, c_int, c_int, c_int, c_int) -> c_int;
    fn deflateBound(z_streamp, c_ulong) -> c_ulong;
    fn deflatePending(z_streamp, *mut c_uint, *mut c_int) -> c_int;
    fn deflatePrime(z_streamp, c_int, c_int) -> c_int;
    fn deflateSetHeader(z_streamp, gz_headerp) -> c_int;
    fn deflateSetDictionary(z_streamp, *const c_uchar, c_uint) -> c_int;
    fn deflateGetDictionary(z_streamp, *mut c_uchar, *mut c_uint) -> c_int;
    fn inflateInit2_(z_streamp, c_int, Text, c_int) -> c_int;
    fn inflate(z_streamp, c_int) -> c_int;
    fn inflateEnd(z_streamp) -> c_int;
    fn inflateReset(z_streamp) -> c_int;
    fn inflateReset2(z_streamp, c_int) -> c_int;
    fn inflateResetKeep(z_streamp) -> c_int;
    fn inflateCopy(z_streamp, z_streamp) -> c_int;
    fn inflateSync(z_streamp) -> c_int;
    fn inflateSyncPoint(z_streamp) -> c_int;
    fn inflatePrime(z_streamp, c_int, c_int) -> c_int;
    fn inflateMark(*const z_stream) -> c_long;
    fn inflateValidate(z_streamp, c_int) -> c_int;
    fn inflateUndermine(z_streamp, c_int) -> c_int;
    fn inflateSetDictionary(z_streamp, *const c_uchar, c_uint) -> c_int;
    fn inflateGetDictionary(*const z_stream, *mut c_uchar, *mut c_uint) -> c_int;
    fn inflateGetHeader(z_streamp, gz_headerp) -> c_int;
    fn inflateBackInit_(z_streamp, c_int, *mut c_uchar, Text, c_int) -> c_int;
    fn inflateBack(
        z_streamp, Option<in_func>, *mut c_void, Option<out_func>, *mut c_void
    ) -> c_int;
    fn inflateBackEnd(z_streamp) -> c_int;
    fn compress2(*mut u8, *mut c_ulong, *const u8, c_ulong, c_int) -> c_int;
    fn compressBound(c_ulong) -> c_ulong;
    fn uncompress(*mut u8, *mut c_ulong, *const u8, c_ulong) -> c_int;
    fn uncompress2(*mut u8, *mut c_ulong, *const u8, *mut c_ulong) -> c_int;
    fn adler32_z(c_ulong, *const u8, usize) -> c_ulong;
    fn crc32_z(c_ulong, *const u8, usize) -> c_ulong;
    fn adler32_combine(c_ulong, c_ulong, c_long) -> c_ulong;
    fn crc32_combine(c_ulong, c_ulong, c_long) -> c_ulong;
    fn crc32_combine_gen(c_long) -> c_ulong;
    fn crc32_combine_op(c_ulong, c_ulong, c_ulong) -> c_ulong;
    fn gzopen(Text, Text) -> gzFile;
    fn gzbuffer(gzFile, c_uint) -> c_int;
    fn gzread(gzFile, *mut c_void, c_uint) -> c_int;
    fn gzwrite(gzFile, *const c_void, c_uint) -> c_int;
    fn gzflush(gzFile, c_int) -> c_int;
    fn gzsetparams(gzFile, c_int, c_int) -> c_int;
    fn gzputc(gzFile, c_int) -> c_int;
    fn gzputs(gzFile, Text) -> c_int;
    fn gzgetc(gzFile) -> c_int;
    fn gzungetc(c_int, gzFile) -> c_int;
    fn gzgets(gzFile, *mut c_char, c_int) -> *mut c_char;
    fn gzseek(gzFile, c_long, c_int) -> c_long;
    fn gztell(gzFile) -> c_long;
    fn gzoffset(gzFile) -> c_long;
    fn gzeof(gzFile) -> c_int;
    fn gzdirect(gzFile) -> c_int;
    fn gzerror(gzFile, *mut c_int) -> Text;
    fn gzclearerr(gzFile) -> ();
    fn gzrewind(gzFile) -> c_int;
    fn gzclose(gzFile) -> c_int;
}

/// Both.
pub(crate) struct Pair {
    pub(crate) ours: Api,
    pub(crate) zlib: Api,
}

impl Pair {
    /// `None` where the system has no zlib of its own.
    pub(crate) fn new() -> Option<Self> {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        let places = [
            "/usr/lib/x86_64-linux-gnu/libz.so.1",
            "/lib/x86_64-linux-gnu/libz.so.1",
            "/usr/lib64/libz.so.1",
            "/usr/lib/libz.so.1",
        ];
        let path = std::env::var("ZLIB_CALLS_LIBRARY").ok();
        let library = path
            .iter()
            .map(String::as_str)
            .chain(places)
            // SAFETY: zlib runs nothing when it is loaded. Its own calls stay inside it.
            .find_map(|path| unsafe {
                Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | libc::RTLD_DEEPBIND).ok()
            })?;
        let zlib = Api::of(&library);
        std::mem::forget(library);
        Some(Self {
            ours: Api::ours(),
            zlib: zlib?,
        })
    }

    pub(crate) fn both(&self) -> [&Api; 2] {
        [&self.ours, &self.zlib]
    }
}

pub(crate) const STREAM_BYTES: c_int = size_of::<z_stream>() as c_int;

/// A text that a library keeps, or "-".
pub(crate) fn text(message: *const c_char) -> String {
    if message.is_null() {
        return "-".to_owned();
    }
    // SAFETY: zlib's messages are constant texts.
    let text = unsafe { std::ffi::CStr::from_ptr(message) };
    text.to_string_lossy().into_owned()
}

//! A buffer is changed while a put reads it.
use sidecore_engine::*;

struct Broken;

impl Kernel for Broken {
    type Args<'j> = (In<'j, u32>, Out<'j, u32>);
    type Out = u32;
    type State = ();

    fn run<'c, 'j: 'c>(
        cx: &mut Ctx<'c, Self>,
        (source, target): Self::Args<'j>,
    ) -> Result<u32, KernelError> {
        let mut buffer = cx.store.alloc::<u32>(64)?;
        let put = cx.mfc.put_large(buffer, target)?;
        buffer[0] = 1;
        drop((put, source));
        Ok(0)
    }
}

fn main() {}

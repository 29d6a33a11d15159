//! The bytes of a get are read though it was not waited for.
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
        let buffer = cx.store.alloc::<u32>(64)?;
        let get = cx.mfc.get_large(buffer, source)?;
        drop(target);
        Ok(get[0])
    }
}

fn main() {}

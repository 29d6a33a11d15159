//! A chunk of the output is written twice at once.
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
        let (front, _) = target.split_at(32).ok_or(KernelError::failed("short"))?;
        let front = cx.mfc.window(front)?;
        let all = cx.mfc.window(target)?;
        drop((front, all, source));
        Ok(0)
    }
}

fn main() {}

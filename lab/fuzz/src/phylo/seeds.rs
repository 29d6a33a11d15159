//! Seed corpus: small valid inputs of every kind.

use sidecore_phylo::random::Random;
use sidecore_phylo::search::State;
use sidecore_phylo::tree::random_tree;
use std::sync::LazyLock;

/// A kind of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any format, packed or not.
    Alignment,
    /// Newick, or trees in NEXUS.
    Tree,
    /// RAxML's partition file or NEXUS sets, for 60 sites.
    Partitions,
    /// A model's name.
    Model,
    /// A run's checkpoint, without the lines' checksums: the fuzz target adds them.
    Checkpoint,
    /// A search's state, as a checkpoint has it in a string.
    State,
}

impl Kind {
    /// Characters with a meaning in it.
    pub(super) fn letters(self) -> &'static [u8] {
        match self {
            Self::Alignment => b"ACGTNacgt-?.>#;=[]'\" \n\t0123456789XBZ*~",
            Self::Tree => b"(),:;'[]=&* .0123456789eE+-abc",
            Self::Partitions => b",=-\\/{}+ \n0123456789aGTR#;:.*BINMUL_K",
            Self::Model => b"+{}/.,0123456789GIRFOUCEMATLWJ_SBNKXQP-",
            Self::Checkpoint | Self::State => b"{}[]:,\"\\ \n0123456789-.eEnulltruefals",
        }
    }
}

/// All kinds.
pub const KINDS: [Kind; 6] = [
    Kind::Alignment,
    Kind::Tree,
    Kind::Partitions,
    Kind::Model,
    Kind::Checkpoint,
    Kind::State,
];

/// Valid inputs of a kind.
#[must_use]
pub fn seeds(kind: Kind) -> &'static [Vec<u8>] {
    static ALL: LazyLock<Vec<Vec<Vec<u8>>>> = LazyLock::new(|| {
        let of = |kind| match kind {
            Kind::State => states(),
            _ => {
                let own = WRITTEN.iter().filter(|seed| seed.0 == kind);
                own.map(|seed| seed.1.to_vec()).collect()
            }
        };
        KINDS.map(of).into()
    });
    let at = KINDS.iter().position(|&own| own == kind);
    at.map_or(&[], |at| &ALL[at])
}

/// States of searches of [`STATE_TAXA`] taxa at their beginning.
fn states() -> Vec<Vec<u8>> {
    let state = |seed| {
        let tree = random_tree(STATE_TAXA, 0.1, &mut Random::new(seed));
        serde_json::to_vec(&State::new(tree, seed)).unwrap_or_default()
    };
    (1..=3).map(state).collect()
}

/// Taxa of the search whose states are read.
pub(super) const STATE_TAXA: usize = 5;

const WRITTEN: [(Kind, &[u8]); 61] = [
    (Kind::Alignment, b"4 6\na ACGTNA\nb AC-TRA\nc ACGTAA\nd TTGTAA\n"),
    (Kind::Alignment, b"5 8\na ACGT\nb ACGA\nc AC?T\nd ACTT\ne ACTT\n\nGGGG\nGGGA\nGGTA\nTGGG\nGGGC\n"),
    (Kind::Alignment, b"4 9\na\nARNDC\nQEGH\nb ARNDC\nQEGH\nc ARNDCQEGH\nd XBZJC\n-?*H\n"),
    (Kind::Alignment, b">a x\nACGT\nACGT\n>b\nACGTACGA\n>c\nACGTAC-A\n>d\nAYGTACGA\n"),
    (Kind::Alignment, b"#NEXUS\nbegin data;\ndimensions ntax=4 nchar=5;\nformat datatype=dna gap=- missing=?;\nmatrix\na ACGTA\n'b c' ACG-A\nc ACGTA\nd AC?TA\n;\nend;\n"),
    (Kind::Alignment, b"#NEXUS begin characters; format interleave matchchar=.; matrix [x]\na ACG\nb ..T\nc A..\nd T..\n\na AC\nb ..\nc .G\nd ..\n; end;"),
    (Kind::Tree, b"((a:0.1,b:0.2):0.05,c:1e-3,(d:1,e:2)0.9:0.5);"),
    (Kind::Tree, b"(a,(b,(c,('d e',f))));"),
    (Kind::Tree, b"[&U] (a:1,b:2,(c:3,d:4)[x]:5)root:0; "),
    (Kind::Tree, b"(((((((a,b),c),d),e),f),g),h,i);"),
    (Kind::Tree, b"('it''s':0.1,b:-0.2,c,d);"),
    (Kind::Partitions, b"GTR+G, one = 1-30\nHKY+B, two = 31-60\n"),
    (Kind::Partitions, b"# x\nDNA, p1 = 1-60\\3\nDNA, p2 = 2-60\\3\nLG+F, p3 = 3-60/3\n"),
    (Kind::Partitions, b"GTR{1/2/3/4/5/6}, a = 1, 2, 3-59\nJC, b=60;\n"),
    (Kind::Model, b"GTR{1.5/3.8/0.6/1.2/4.0/1.0}+FU{0.27/0.2/0.24/0.29}+IU{0.25}+G4m{0.5}"),
    (Kind::Model, b"HKY85{1/2}+F+I+G8a"),
    (Kind::Model, b"DNA012230+FO+R3{0.1/1/2}{0.3/0.4/0.3}"),
    (Kind::Model, b"LG+FE+IC+R4"),
    (Kind::Model, b"Dayhoff+G4{0.02}"),
    (Kind::Alignment, b"4 6 I\nHomo sapieACGTAC\nPan trogloACG.AA\nGorilla   ACGTAG\nPongo pygmACGTAT\n"),
    (Kind::Alignment, b">a\r.CGT\r>b\rACG.\r>c\rACGT\r>d\rNN-?\r"),
    (Kind::Model, b"DNA"),
    (Kind::Model, b"GTR+FC+G4m+B{0.75}"),
    (Kind::Alignment, b" 5 9 \r\na  ACG TTA\r\nb  ACGTTA\r\nc  ACGTTC\r\nd  AC-TTA\r\ne  ACGNTA\r\n\r\n a GGG\r\n b GGG\r\n c GG-\r\n d AGG\r\n e GGG\r\n"),
    (Kind::Alignment, b"4 12\na\nACGT\nACGT\nACGT\nb\nACGTACGTACGA\nc ACGTAC GTACGT\nd\nTCGTACGT\nACGT\n"),
    (Kind::Alignment, b">a\nARNDCQEGHILKMFPSTWYV\n>b\nARNDCQEGHILKMFPSTWYX\n>c desc\nARND-QEGHILKMFPSTWYB\n\n>d\nARNDCQEGHILK*FPSTWYV\n"),
    (Kind::Alignment, b"#NEXUS\nbegin taxa; dimensions ntax=4; taxlabels a b c d; end;\nbegin characters; dimensions nchar=4;\nformat datatype=protein missing=? gap=-;\nmatrix a ARND b ARN- c A?ND d XRND ; end; begin trees; tree x=(a,b,(c,d)); end;"),
    (Kind::Checkpoint, br#"{"Begin":{"format":"sidecore phylo checkpoint","version":5,"settings":[["--seed","1"]]}}
{"Finished":{"piece":{"kind":"search","first":0,"count":1},"outcomes":[{"kind":"search","index":0,"lnl":-12.5,"tree":"(a,b,c);","start":"(a,b,c);","models":["JC"],"wall_s":0.5}]}}
{"Saved":{"piece":{"kind":"bootstrap","first":0,"count":10},"state":"{\"done\":[],\"state\":1}"}}
"#),
    (Kind::Checkpoint, br#"{"Begin":{"format":"sidecore phylo checkpoint","version":5,"settings":[["--seed","1"]]}}
{"Tested":{"replicates":50,"distance":0.5,"within":3,"converged":false}}
{"Finished":{"piece":{"kind":"bootstrap","first":2,"count":2},"outcomes":[]}}
{"Tested":{"replicates":100,"distance":0.01,"within":999,"converged":true}}
"#),
    (Kind::Alignment, b"\x1F\x8B\x08\x00\x00\x00\x00\x00\x02\x033Q0\xE3JTptv\x0F\xF1s\xE4J\x022tC\x82\x1C\xB9\x92\xC1\x22\x8E\x8E\x5C)\x0A!!`\x06\x00Des\x11(\x00\x00\x00"),
    (Kind::Alignment, b"(\xB5/\xFD\x04h\x1D\x01\x00\x82\xC2\x07\x0B\xC0=\xA4\xCA{\x8D\xB7\xFB~\x05,\xF0\xA7eF\xC3\x9FV\x0F\x86cJ=\x16~i\xF5P\xA0\x98\x00\xB0\xCCy\x97"),
    (Kind::Alignment, b"CLUSTAL W (1.83) multiple sequence alignment\n\na ACGT 4\nb AC-T 4\nc ACGA 4\nd TCGA 4\n  *..:\n\na AC\nb AC\nc GC\nd AN\n"),
    (Kind::Alignment, b"# STOCKHOLM 1.0\n#=GF ID x\na ACGT\nb A..T\n#=GC RF xxxx\nc ACGA\nd TCGA\n\na A\nb A\nc A\nd _\n//\n"),
    (Kind::Partitions, b"#NEXUS\nbegin sets;\ncharset a = 1-20, 21 - 30\\2;\ncharset b = 22-30\\2 31-.;\ncharpartition * p = GTR{1/1/1/1/1/1}:a, JC:b;\nend;\n"),
    (Kind::Partitions, b"#nexus [x] begin sets; charset c = all; charset d = c; charpartition q = DNA:d; end;"),
    (Kind::Partitions, b"DNA, one = 1-.\\2\nJC, two = 2 - .\\2\n"),
    (Kind::Tree, b"#NEXUS\nbegin taxa; taxlabels a 'b c' d e; end;\nbegin trees;\ntranslate 1 a, 2 'b c', 3 d, 4 e;\ntree * t1 = [&U] ((1:0.1,2:2)[&x=1]:1,3,4);\nutree t2=[&R](1,(2,(3,4)));\nend;\n"),
    (Kind::Tree, b"(a,b,(c,d));\n(a,c,(b,d));\n"),
    (Kind::Model, b"BIN+FU{0.6/0.4}+G4m{0.5}+ASC_LEWIS"),
    (Kind::Model, b"MULTI5_GTR{1/2/3/4/5/6/7/8/9/1}+FC+ASC_FELS{500}"),
    (Kind::Model, b"MULTI64_MK+FE"),
    (Kind::Model, b"MULTI3_MK+ASC_STAM{10/20/30}"),
    (Kind::Model, b"GTR+FO+ASC_STAM{10/20/0/30}"),
    (Kind::Model, b"LG4X+R4{0.2/0.6/1.1/2.4}{0.3/0.3/0.2/0.2}"),
    (Kind::Model, b"LG4M+G4{0.7}+F"),
    (Kind::Model, b"Q.pfam_gb+R4+B"),
    (Kind::Model, b"JTT-DCMut+FE+I"),
    (Kind::Model, b"GTGTR4{0.01/1/2/3/4/5/1}+FO"),
    (Kind::Model, b"GTHKY4+FC"),
    (Kind::Model, b"GTJC-SM"),
    (Kind::Model, b"GPGTR4+FE+G"),
    (Kind::Partitions, b"BIN, one = 1-30\nMULTI5_MK+ASC_LEWIS, two = 31-60\n"),
    (Kind::Partitions, b"GTGTR4+FO, a = 1-20\nLG4X, b = 21-40\nstmtREV+F+I, c = 41-60\n"),
    (Kind::Partitions, b"GTR+G+ASC_STAM{1/2/3/4}, snp = 1-60\n"),
    (Kind::Alignment, b"4 6\na 010?-1\nb 011011\nc 000111\nd 111010\n"),
    (Kind::Alignment, b">a\n01A2Z\n>b\n0!A#Z\n>c\n01~2$\n>d\n&%A2Z\n"),
    (Kind::Alignment, b"#NEXUS\nbegin data; dimensions ntax=4 nchar=5;\nformat datatype=standard symbols=\"012\" missing=? gap=-;\nmatrix a 01201\nb 01?01\nc 0-211\nd 21201\n; end;\n"),
    (Kind::Alignment, b"4 5\na AMRWS\nb ACGTN\nc YKACG\nd AAAA-\n"),
    (Kind::Alignment, b"4 8\na 0101\nb 0111\nc 0001\nd 1101\n\n0011\n0011\n1111\n0000\n"),
    (Kind::Model, b"MULTI36_JC+R2{0.5/2}{0.6/0.4}"),
    (Kind::Model, b"mtVer+F+I+G8a"),
];

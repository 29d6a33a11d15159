//! What damage starts from: small inputs of every kind that are right.

/// A kind of input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PHYLIP, FASTA or NEXUS.
    Alignment,
    /// Newick.
    Tree,
    /// RAxML's partition file, for 60 sites.
    Partitions,
    /// A model's name.
    Model,
}

impl Kind {
    /// Characters that mean something in it.
    pub(super) fn letters(self) -> &'static [u8] {
        match self {
            Self::Alignment => b"ACGTNacgt-?.>#;=[]'\" \n\t0123456789XBZ*~",
            Self::Tree => b"(),:;'[] .0123456789eE+-abc",
            Self::Partitions => b",=-\\/{}+ \n0123456789aGTR#",
            Self::Model => b"+{}/.,0123456789GIRFOUCEMATLWJ",
        }
    }
}

/// Right inputs, and what they are.
pub const SEEDS: [(Kind, &[u8]); 19] = [
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
    (Kind::Partitions, b"GTR+G, one = 1-30\nHKY, two = 31-60\n"),
    (Kind::Partitions, b"# x\nDNA, p1 = 1-60\\3\nDNA, p2 = 2-60\\3\nLG+F, p3 = 3-60/3\n"),
    (Kind::Partitions, b"GTR{1/2/3/4/5/6}, a = 1, 2, 3-59\nJC, b=60;\n"),
    (Kind::Model, b"GTR{1.5/3.8/0.6/1.2/4.0/1.0}+FU{0.27/0.2/0.24/0.29}+IU{0.25}+G4m{0.5}"),
    (Kind::Model, b"HKY85{1/2}+F+I+G8a"),
    (Kind::Model, b"DNA012230+FO+R3{0.1/1/2}{0.3/0.4/0.3}"),
    (Kind::Model, b"LG+FE+IC+R4"),
    (Kind::Model, b"Dayhoff+G4{0.02}"),
];

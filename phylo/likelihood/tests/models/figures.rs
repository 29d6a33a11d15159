//! Figures of other programs, on the alignments and the tree in `tests/data/models.txtar`.
//!
//! RAxML-NG 1.2.2, the "Final LogLikelihood" of
//! `raxml-ng --evaluate --msa DATA.phy --tree tree.nwk --model MODEL --opt-model off --opt-branches
//! off --threads 1 --prefix x --force perf_threads`; of matrices that it does not have (mtMet,
//! mtVer, mtInv, FLAVI) IQ-TREE 2.0.7, the "Log-likelihood of the tree" of `iqtree2 -s DATA.phy -te
//! tree.nwk -m MODEL+G4{0.7} -blfix -nt 1`; of codons the same with `-st CODON -m GY+F3X4` and its
//! like (`CODON5` where a model has `+CODE{5}`), `omega` and `kappa` being those that it fitted
//! (its `.ckp.gz`); of published matrices of codons 3.0.1. Of mixtures IQ-TREE 3.0.1 under the name
//! that stands here, the same way: by `piqtree`'s `iq_fit_tree`, lengths fixed; of `+C10` to
//! `+C60` 2.0.7, which fits their shape (its `.ckp.gz` has it). Of `+C60` the figure is 3.0.1's,
//! from which 2.0.7's differs by 0.026.

/// A log-likelihood.
pub(crate) struct Figure {
    /// The alignment, without its ending.
    pub(crate) data: &'static str,
    /// The model, all of its values given or counted.
    pub(crate) model: &'static str,
    /// The program's figure.
    pub(crate) lnl: f64,
}

const fn figure(data: &'static str, model: &'static str, lnl: f64) -> Figure {
    Figure { data, model, lnl }
}

/// All of them.
#[rustfmt::skip]
pub(crate) const FIGURES: &[Figure] = &[
    figure("protein", "LG+G4m{0.7}", -1947.876798),
    figure("protein", "WAG+G4m{0.7}", -1893.009713),
    figure("protein", "JTT+G4m{0.7}", -1905.393480),
    figure("protein", "DAYHOFF+G4m{0.7}", -1930.501880),
    figure("protein", "DCMUT+G4m{0.7}", -1929.750699),
    figure("protein", "JTT-DCMUT+G4m{0.7}", -1905.585277),
    figure("protein", "MTREV+G4m{0.7}", -2052.806810),
    figure("protein", "MTMAM+G4m{0.7}", -2189.870079),
    figure("protein", "MTART+G4m{0.7}", -2138.022886),
    figure("protein", "MTZOA+G4m{0.7}", -2085.302068),
    figure("protein", "RTREV+G4m{0.7}", -1923.878811),
    figure("protein", "CPREV+G4m{0.7}", -1911.486798),
    figure("protein", "VT+G4m{0.7}", -1851.671396),
    figure("protein", "BLOSUM62+G4m{0.7}", -1845.124141),
    figure("protein", "PMB+G4m{0.7}", -1838.803381),
    figure("protein", "HIVB+G4m{0.7}", -2007.138769),
    figure("protein", "HIVW+G4m{0.7}", -2037.566988),
    figure("protein", "FLU+G4m{0.7}", -1999.428507),
    figure("protein", "DEN+G4m{0.7}", -1943.250694),
    figure("protein", "STMTREV+G4m{0.7}", -1979.763821),
    figure("protein", "Q.PFAM+G4m{0.7}", -1932.810777),
    figure("protein", "Q.PFAM_GB+G4m{0.7}", -1962.113420),
    figure("protein", "Q.LG+G4m{0.7}", -1949.200095),
    figure("protein", "Q.BIRD+G4m{0.7}", -1983.854165),
    figure("protein", "Q.INSECT+G4m{0.7}", -1930.776081),
    figure("protein", "Q.MAMMAL+G4m{0.7}", -1945.240084),
    figure("protein", "Q.PLANT+G4m{0.7}", -1993.358392),
    figure("protein", "Q.YEAST+G4m{0.7}", -1951.643487),
    figure("protein", "LG4M+G4m{0.7}", -1957.362015),
    figure("protein", "LG4X+R4{0.2/0.6/1.1/2.4}{0.3/0.3/0.2/0.2}", -1960.509379),
    figure("protein", "LG4X+IU{0.1}+R4{0.2/0.6/1.1/2.4}{0.3/0.3/0.2/0.2}", -1960.851681),
    figure("protein", "LG4M+IU{0.1}+G4m{0.7}", -1957.380419),
    figure("protein", "mtMet+G4m{0.7}", -2051.4324),
    figure("protein", "mtVer+G4m{0.7}", -2115.5030),
    figure("protein", "mtInv+G4m{0.7}", -2035.3282),
    figure("protein", "FLAVI+G4m{0.7}", -2084.1188),
    figure("codon", "GY{0.2507425138/2.496674438}+F3X4", -1197.3909),
    figure("codon", "GY{0.2555633451/2.403422078}+F1X4", -1198.9995),
    figure("codon", "GY{0.2526535539/2.39864364}+FE", -1197.6168),
    figure("codon", "MG{0.223058714}+F3X4", -1211.3914),
    figure("codon", "MG{0.2258110706}+F1X4", -1212.9562),
    figure("codon", "MGK{0.2513678405/2.427443732}+F3X4", -1196.1143),
    figure("codon", "MGK{0.2548735624/2.38602049}+F1X4", -1198.2809),
    figure("codon", "GY{0.2240228948/2.568567959}+F3X4+G4m{0.7}", -1216.5220),
    figure("codon", "MGK{0.2266740933/2.513086887}+F1X4+IU{0.1}+G4m{0.7}", -1225.8762),
    figure("codon", "GY{0.2651060872/2.461924852}+CODE{5}+F3X4", -1203.7027),
    figure("codon", "MGK{0.2693779771/2.33773382}+F1X4+CODE{5}", -1205.2273),
    figure("codon", "GY{0.2483088833/2.494975476}+F3X4+CODE{12}", -1197.2784),
    figure("codon", "MGK{0.2498122074/2.386080587}+F1X4+CODE{12}", -1197.6823),
    figure("codon", "KOSI07", -1292.4382),
    figure("codon", "KOSI07+G4m{0.7}", -1311.8916),
    figure("codon", "KOSI07+F", -1266.8824),
    figure("codon", "KOSI07+F3X4", -1278.9989),
    figure("codon", "ECMREST", -1279.8742),
    figure("codon", "ECMREST+G4m{0.7}", -1293.0538),
    figure("codon", "ECMREST+F", -1269.0114),
    figure("codon", "SCHN05", -1260.4063),
    figure("codon", "SCHN05+G4m{0.7}", -1279.7460),
    figure("codon", "SCHN05+F", -1241.9516),
    figure("codon", "SCHN05+F3X4", -1254.1768),
    figure("binary", "BIN+FE", -623.215372),
    figure("binary", "BIN+FU{0.6/0.4}+G4m{0.5}", -580.443174),
    figure("binary", "BIN+FC+IU{0.2}+G4m{0.5}", -584.106189),
    figure("multi5", "MULTI5_MK", -1287.698158),
    figure("multi5", "MULTI5_MK+FC+R3{0.2/0.8/2.5}{0.4/0.4/0.2}", -1234.612936),
    figure("multi5", "MULTI5_JC+IU{0.1}+G4m{0.5}", -1268.145554),
    figure("multi5", "MULTI5_GTR{1/2/3/4/5/6/7/8/9/1}+FC+G4m{0.5}", -1274.435905),
    figure("multi5", "MULTI9_MK+G4m{0.5}", -1539.970823),
    figure("multi40", "MULTI40_MK+G4m{0.5}", -1664.699243),
    figure("multi40", "MULTI64_MK+FE", -1859.130360),
    figure("genotype", "GTJC+G4m{0.5}", -1955.663009),
    figure("genotype", "GTJC-SM", -2493.640275),
    figure("genotype", "GTGTR4{0.001/1/2/3/4/5/1}+FC+G4m{0.5}", -2146.241496),
    figure("genotype", "GTHKY4{0.001/1/3}+FC", -2409.620445),
    figure("genotype", "GTGTR{1/2/1/1/1/1/3/1/1/1/1/4/1/1/1/1/2/1/1/1/5/1/1/1/1/6/1/1/1/1/1/2/1/\
        1/1/1/1/7/1/1/1/1/1/1/1}+FC", -1962.635598),
    figure("genotype", "GTGTR-SM{0.01/1/2/1/1/1/3/1/1/1/1/4/1/1/1/2/1/1/1/5/1/1/1/1/\
        1}+FC", -2335.102308),
    figure("snp", "GTR{1/2/1/1/3/1}+FC+G4m{0.5}+ASC_LEWIS", -1434.777992),
    figure("snp", "JC+ASC_LEWIS", -1435.504435),
    figure("binvar", "BIN+FU{0.6/0.4}+ASC_LEWIS", -625.313369),
    figure("binvar", "BIN+FC+G4m{0.5}+ASC_LEWIS", -630.162907),
    figure("multi5var", "MULTI5_MK+ASC_LEWIS", -1142.381596),
    figure("multi5var", "MULTI5_GTR{1/2/3/4/5/6/7/8/9/1}+FC+G4m{0.5}+ASC_LEWIS", -1140.261733),
    figure("protvar", "LG+G4m{0.5}+ASC_LEWIS", -1800.183434),
    figure("snp", "GTR{1/2/1/1/3/1}+FC+G4m{0.5}+ASC_FELS{500}", -1947.318590),
    figure("snp", "JC+ASC_FELS{500}", -2485.586459),
    figure("binvar", "BIN+FU{0.6/0.4}+ASC_FELS{500}", -1554.221410),
    figure("binvar", "BIN+FC+G4m{0.5}+ASC_FELS{500}", -1113.844287),
    figure("multi5var", "MULTI5_MK+ASC_FELS{500}", -2195.863701),
    figure("multi5var", "MULTI5_GTR{1/2/3/4/5/6/7/8/9/1}+FC+G4m{0.5}+ASC_FELS{500}", -1616.688210),
    figure("protvar", "LG+G4m{0.5}+ASC_FELS{500}", -2272.648719),
    figure("snp", "GTR{1/2/1/1/3/1}+FC+G4m{0.5}+ASC_STAM{100/200/150/90}", -2770.587229),
    figure("snp", "HKY{1/3}+FU{0.3/0.2/0.2/0.3}+ASC_STAM{100/200/150/90}", -3437.579379),
    figure("binvar", "BIN+FU{0.6/0.4}+ASC_STAM{300/200}", -1933.159133),
    figure("multi5var", "MULTI5_MK+G4m{0.5}+ASC_STAM{100/200/150/90/10}", -2563.961763),
    figure("protvar", "LG+FC+ASC_STAM{10/20/30/40/50/60/70/80/90/10/\
        10/20/30/40/50/60/70/80/90/10}", -6590.988875),
    figure("protein", "POISSON+G4{0.7}", -1808.9343),
    figure("protein", "LG+C10+G4{0.2383696376}", -2096.4570),
    figure("protein", "LG+C20+G4{0.2662850716}", -2085.4615),
    figure("protein", "WAG+C30+G4{0.3375391815}", -2032.4417),
    figure("protein", "LG+C40+G4{0.2653784647}", -2092.4215),
    figure("protein", "LG+C50+G4{0.2618077108}", -2091.9805),
    figure("protein", "LG+C60+G4{0.263120316}", -2092.35207871),
    figure("protein", "MIX{LG:1:0.3,WAG:1.5:0.5,JTT:0.7:0.2}+G4{0.7}", -1898.78293781),
    figure("protein", "MIX{BurEX2:0.672020808818762:0.4,\
        ExpEX2:1.6413466609931:0.6}+G4{0.7}", -1952.57018572),
    figure("protein", "MIX{BurEX3:0.427672756793791:0.2,IntEX3:0.837595938019774:0.5,\
        HExEX3:1.51863631431518:0.3}+G4{0.7}", -1950.2801),
    figure("protein", "MIX{ExtEHO:0.720274356:0.3,HelEHO:0.976798797:0.4,\
        OthEHO:0.783109376:0.3}", -2030.7097),
    figure("protein", "MIX{M1_UL2:0.581348617:0.35,\
        M2_UL2:1.465482789:0.65}+I{0.1}+G4{0.7}", -1948.0224024),
    figure("protein", "MIX{Q1_UL3:0.484340397:0.3,Q2_UL3:0.492780514:0.3,\
        Q3_UL3:1.15597274:0.4}+G4{0.7}", -1970.7877),
    figure("protein", "MIX{BUR_EXT:0.761816796788931:0.1,BUR_HEL:0.744425646802117:0.2,\
        BUR_OTH:0.532457759429489:0.2,EXP_EXT:1.5639387472863:0.1,EXP_HEL:2.06403411829438:0.2,\
        EXP_OTH:1.43336795177594:0.2}", -1990.7495),
];

/// Log-likelihoods with lengths and all free parameters fitted, by RAxML-NG 1.2.2: `raxml-ng
/// --evaluate --msa DATA.phy --tree tree.nwk --model MODEL --lh-epsilon 0.01 --threads 1 --prefix x
/// --force perf_threads`. Of mixtures by IQ-TREE 2.0.7: `iqtree2 -s DATA.phy -te tree.nwk
/// -m MODEL`.
#[rustfmt::skip]
pub(crate) const FITTED: &[Figure] = &[
    figure("protein", "LG4X", -1882.033325),
    figure("protein", "LG4M", -1922.696210),
    figure("protein", "Q.PFAM+FO+I+G", -1870.242687),
    figure("binary", "BIN+G", -573.211660),
    figure("multi5", "MULTI5_GTR+FO+G", -1220.105824),
    figure("multi5", "MULTI5_MK+R2", -1248.839132),
    figure("genotype", "GTGTR4+FO+G", -1830.756052),
    figure("genotype", "GTHKY4", -1906.076794),
    figure("snp", "GTR+FO+G+ASC_LEWIS", -1407.980807),
    figure("snp", "HKY+FC+ASC_FELS{500}", -1961.295923),
    figure("snp", "GTR+FC+G+ASC_STAM{100/200/150/90}", -2569.675819),
    figure("binvar", "BIN+G+ASC_LEWIS", -617.018869),
    figure("multi5var", "MULTI5_GTR+FC+ASC_LEWIS", -1109.988571),
    figure("protvar", "LG+FC+G+ASC_LEWIS", -1775.881917),
    figure("protein", "LG+C20+G4", -2000.1022),
    figure("protein", "LG+C10+F+G4", -1890.0036),
    figure("protein", "LG+FMIX{C10pi1,C10pi2,C10pi5,empirical}+G4", -1890.0050),
    figure("protein", "EX3+G4", -1890.8489),
    figure("protein", "MIX{LG,WAG,JTT}+G4", -1854.7503),
];

/// Likewise of `dna.phy` under the three partitions of `parts.txt`, with `--brlen linked`, `scaled`
/// and `unlinked`.
pub(crate) const BRLEN: [f64; 3] = [-2269.372543, -2269.157718, -2257.969973];

/// The files that the figures are of: their names and texts.
pub(crate) fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    let parts = include_str!("../data/models.txtar").split("-- ");
    parts.filter_map(|part| part.split_once(" --\n"))
}

/// Of [`ROOTED_TREE`]: IQ-TREE 3.0.1, `iqtree3 -s protein.phy -te rooted.nwk -m NQ.pfam+G4{0.7}
/// -blfix`.
#[rustfmt::skip]
pub(crate) const ROOTED: &[Figure] = &[
    figure("protein", "NQ.pfam+G4m{0.700000}", -1934.0159),
    figure("protein", "NQ.bird+G4m{0.700000}", -1986.1459),
    figure("protein", "NQ.insect+G4m{0.700000}", -1930.3486),
    figure("protein", "NQ.mammal+G4m{0.700000}", -1949.0390),
    figure("protein", "NQ.plant+G4m{0.700000}", -1991.5679),
    figure("protein", "NQ.yeast+G4m{0.700000}", -1950.1262),
];

/// The tree of the other figures, with a root.
pub(crate) const ROOTED_TREE: &str = "(t5:0.1,((t3:0.010411,t9:0.031309):0.221767,(t8:0.090708,\
     (t7:0.121792,(((t1:0.218401,t2:0.144989):0.352724,t6:0.027792):0.263359,\
     (t10:0.079218,t4:0.143814):0.019459):0.103953):0.044625):0.105498):0.051138);";

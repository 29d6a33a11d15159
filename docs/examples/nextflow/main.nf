// From a folder of alignments to gene trees, a species tree, concordance and dates.
//
//   nextflow run main.nf --loci loci --dates dates.tsv --outgroup t1
//
// A line of the dates is a name and a date; `mrca(a,b)` is an ancestor.

params.loci = 'loci'
params.dates = 'dates.tsv'
params.outgroup = 't1'

// A model and a tree for each locus, with supports. The loci share the engines.
process GENES {
    publishDir 'out'
    cpus 4

    input:
    path loci

    output:
    path 'g.geneTrees'

    script:
    """
    sidecore phylo genes --msa $loci --support abayes --seed 1 --engines ${task.cpus} --prefix g
    """
}

process SPECIES {
    publishDir 'out'

    input:
    path genes

    output:
    path 'species.nwk'

    script:
    """
    sidecore phylo species $genes --weights support --support-range 0.333,1 -o species.nwk
    """
}

process CONCORDANCE {
    publishDir 'out'
    cpus 4

    input:
    path species
    path genes
    path loci

    output:
    path 'concordance.tsv'

    script:
    """
    sidecore phylo concordance --tree $species --genes $genes --msa $loci --model GTR+G --engines ${task.cpus} --table concordance.tsv
    """
}

// The species tree with lengths in substitutions, which a clock needs.
process LENGTHS {
    cpus 4

    input:
    path loci
    path species

    output:
    path 'lengths.nwk'

    script:
    """
    sidecore phylo evaluate --msa $loci --tree $species --model GTR+G --opt all --engines ${task.cpus} --tree-out lengths.nwk
    """
}

process DATES {
    publishDir 'out'

    input:
    path lengths
    path dates
    path loci
    val outgroup

    output:
    path 'dated.nwk'

    script:
    """
    sidecore phylo date $lengths --dates $dates --msa $loci --outgroup $outgroup -o dated.nwk
    """
}

workflow {
    loci = file(params.loci)
    genes = GENES(loci)
    species = SPECIES(genes)
    CONCORDANCE(species, genes, loci)
    DATES(LENGTHS(loci, species), file(params.dates), loci, params.outgroup)
}

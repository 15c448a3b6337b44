"""The text of `docs/benchmarks.md`: how to read it, and what is measured and how."""

HEAD = """\
# Benchmarks

Written by `make bench`; do not edit. Read the ratios: they are seen side by side in one run, on objects in the page
cache, and hold for machines like this one. Absolute numbers differ between machines, and by a fifth between runs.
Each number is a median over the rounds; *least to most* are the rounds' extremes of the column before.

| command | does |
| --- | --- |
| `make bench` | measures everything and writes this page: an hour and more on two cores |
| `make bench BENCH_FLAGS="--only text --write-docs"` | measures a case anew for this page |
| `make bench BENCH_FLAGS="--resume --write-docs"` | goes on with a run that was stopped |
| `python benches/python/run.py --only tokens text` | measures some cases and shows them |
| `python benches/python/run.py --only tokens --readers polars pyarrow` | the same with some rivals |
| `python benches/python/run.py --quick` | sees in minutes that everything works; its numbers mean nothing |
| `python benches/python/run.py --report` | shows what has been measured so far |
| `scripts/network.py run -- make bench` | measures in a network with latency and losses, see `CONTRIBUTING.md` |

All that is measured is kept as JSON beside the data, by default in `target/bench-data/results`; data and conversions
take 45 GB of disk. What this page shows is in `docs/benchmarks`; each case is of one run, and the
[last table](#when-and-with-which-build) says of which.
Cases: `tokens`, `tokens-plain`, `embeddings`, `text`, `text-bytes`, `tabular`, `limits`, `shuffle`, `memory`,
`process`, `scan`, `hub`, `packing`, `images`, `map`, `pinned`, `training`.
"""

NOTES = """\
## What is measured

**Rows to tensors and strings.**

- **Data**, all of a gigabyte in memory or more, seeded, written by pyarrow. *Tokens*: 131,072 rows of
  `list<int32>[2048]`, ids with the frequencies of words, row groups of 1000 rows; zstd with a dictionary and no page
  index, or neither compressed nor with a dictionary and with a page index. *Embeddings*: 360,448 rows of
  `fixed_size_list<float32>[768]`, snappy, row groups of 8192 rows. *Text*: 880,000 rows of about 1.2 kB and a score,
  zstd, row groups of 5000 rows. *Numbers*: 1,800,000 rows of 100 columns of four types, a twentieth NULL, snappy, row
  groups of 100,000 rows. A pass reads the objects six or eight times under different names, which is several times
  what the windows of a shuffle hold; twice in what was measured before 53c4c48. Before it is measured, a reader's files
  are read into the page cache, and, after d05a56f, its process takes 4 GiB from the system and gives it back: the host
  of a virtual machine takes what is free for seconds, and finds it again at one to two seconds a GiB.
- **Equal work.** Batches are torch tensors `[256, 2048]` of tokens and `[1024, 768]` of embeddings; 256 Python
  strings and a tensor of scores; the same as bytes and offsets in tensors; for each of 100 columns 4096 values and a
  mask. Readers by hand cut these without copying and in the objects' order, loaders shuffle, Forebay does both. Each
  reader has a process of its own and the same cores; readers take turns, round by round.
- **Equal rows.** Before it is timed a reader delivers a tiny data set, which also imports all that it needs. A digest
  of each value of each row must be that of what pyarrow reads at once. Readers that are timed over a whole pass must
  then agree on its rows and on a sum over them.
- **After the first batch** leaves out opening and the filling of buffers, but flatters a reader that has decoded much
  by then: a scanner that reads ahead, a shuffle window. So *ours : its* is the lower of two ratios, after the first
  batch and of **the whole pass**. *Late : all* is the rate of the second half of the rows over that of all, 1 where a
  reader is steady. Loaders that go row by row are stopped ten seconds after their first batch, and only the rate
  after it counts; their first two seconds, in which they take memory from the system, are half as fast as the rest.
- **Variants.** The first round measures each way to use a reader: pyarrow's scanner cutting batches or not, or row
  groups on threads; a loader without workers and with two. The others measure the best alone. Loaders a tenth as fast
  as Forebay have three rounds.
- **Loaders.** `datasets`: streaming, `shuffle(buffer_size=1000)`, `with_format("torch")`, in a `DataLoader`; *arrow
  mode* is `with_format("arrow").iter()`, which does not shuffle. litdata: `ParquetLoader` on the objects as they are,
  and what `optimize` wrote, tokens with its `TokensLoader`. MosaicML: MDS, py1e. WebDataset: tar files of 64 MiB,
  `shardshuffle=100`, `shuffle(1000)`. `lancedb.streaming`: rows shuffled, with a transform that makes tensors. Deep
  Lake: `pytorch()`, shuffled by `DataLoader`. Loaders of samples have no form for NULLs and are not in *Numbers with
  NULLs*. Numbers come as arrays, not as lists, wherever a loader lets one choose.
- **Conversion** is the time to write the copy that a loader needs, with its defaults, and the copy's size on disk.
  Lance's is of the whole pass, the others' of the objects once.
- **CPU** is that of all threads and workers from opening to the last batch. Other programs on the machine hardly move
  it, so it compares what the readers cost even where the clock does not.
- **Memory** is the highest resident size beyond what the process held before it opened anything; workers' own at the
  end is added to it.

**Limits.** *Stages*: bytes over the time of the threads that worked on a stage, by the stream's own clocks
(`stats()`), beside what one thread does without Forebay. *Read*: objects from the page cache into memory that is
there; ours is the time in which any request was waiting or under way, for room in memory, too; pages that threads read
as they decode them are in *decode*, which makes the rest of *read* seem faster than the limit. *Decode*: decompressing
the same pages with pyarrow's codecs, and copying their content once. *Gather*: copying the rows' bytes in one piece.
*Hand over*: making a tensor by DLPack; ours is all that the consumer does to take a batch, divided by its tensors.
*End to end*: the sum of reading, decompressing and copying on all cores, the bare decode of `benches/decode.rs` (all
threads decode row groups from memory and drop them: no reading, batches, tensors or order; all columns of the
objects), and a shuffled epoch, first batch included. *Loopback*: nginx on this machine, sockets that drop what they
get, and an epoch of Forebay from it.

**Shuffle.** 1,000,000 rows sorted by label, in row groups, shards or chunks of 1000, batches of 256, one rank without
workers. *Entropy* and the variances of batch means are those of [order.md](order.md#how-good-is-it). *Equal memory*
is a buffer or block of 50,000 rows. Forebay's is the plan of an epoch of rows of 8 kB at default settings, MosaicML's
that of its own planner; `datasets`, litdata and `lancedb.streaming` deliver the rows; WebDataset shuffles numbers in
the place of files. Orders of Forebay, of py1e and the full shuffle are means of five seeds. The model is one hidden
layer on ten classes, trained for an epoch by plain SGD on features around a centre for each class, with five seeds.
*Deviations above full* is how far its loss on held-out rows is above that after a full shuffle, in standard
deviations of the latter's seeds, the median over the epoch.

**Memory.**

- **Peak memory**: the highest resident size of the process over a shuffled epoch whose windows take half of the limit,
  less that of a process which has only opened the data set. `tokens-indexed` are the tokens with a page index.
- **A row group of 2 GiB** is one object with a page index, incompressible, zstd: `tokens` of 8 KiB a row, 32 `images`
  of 64 MiB, `wide` of 56 columns. Shuffled with windows of half of the limit, all columns, in Arrow batches.

**Import and exit.** **Import**: the median of ten interpreters with `import forebay`, less that of ten without.
**Exit**: from the last statement of a program that ends in mid-epoch until it is gone, less the same of one that has
only imported torch.

**Scans.**

- **Scans**: Arrow batches of the rows that pass a filter, from the call that opens the objects to the last batch, each
  in a process of its own whose imports are not timed and whose caches are empty; since 2454250 it takes a GiB from the
  system before, and gives it back. *Narrow*: 4,000,000 rows, two of four
  numbers are read, 4 objects, row groups of 250,000. *Wide*: 100,000 rows of text, 256 tokens and an image of 3 kB, 8
  objects, row groups of 2500. Kept rows lie *anywhere* (a filter that no statistics decide) or *together* (a range of
  the row number). All readers must agree on the count of the rows and a sum over them.
- **The store of the scans** is nginx on the loopback interface, with the first byte of each answer so much later than
  asked. From its log: the bytes of all bodies, the requests, how many were under way at once, and the longest chain in
  which each began after the one before had ended, listing included. A reader that has more to ask for than it asks at
  once has long chains, too. At 0 ms the last two are not known. *The store alone* is what one process gets that drops
  all it reads.
- **Readers of the scans** are set as their documentation says for stores far away: pyarrow with 32 IO threads, DuckDB
  with 16 threads, DataFusion with filters pushed down and 16 partitions. Polars and Lance size themselves. DuckDB is
  the newest release whose `httpfs` is on a package registry (`python/requirements/duckdb-httpfs.txt`), not the one of
  the table below. The best *on Parquet* leaves out Lance, which reads a converted copy.
- **Page by page**: Forebay reads up to 16 MiB that may hold no kept row where it would wait for a round trip otherwise
  (`round_trip_bytes` in [stores](howto/stores.md#options)). *Forebay, exact* waits. *MiB of pages* are those of the
  pages that hold its kept rows, and of those that its filter had to see; *bytes read* are all that the store sent, but
  the footers.
- **Random rows** are taken from *wide* with pages of 64 KiB by number, in one call: `Dataset.gather`, `take` of Lance,
  `Dataset.take` of pyarrow.

**Hub.** The Hub of the tests, whose URLs lead to nginx, both on the loopback interface and with all answers so much
later than asked. Each reader opens the repository by its name, in a process of its own with empty caches, which takes
memory and gives it back as above, and shuffles with its defaults. The repository has the objects as many times as a
pass above. Forebay's rate is of a whole epoch, opening included; the others are stopped ten seconds after their first
batch, and only the rate after it counts. *Hub requests* are those to its API and those that resolve files, of the last
round.

**Packing.** 60,000 documents of 16 to 20,000 tokens, log-normal lengths, into batches of 16 sequences of 2048. The
generators append documents to a list and cut it, or pack windows of 4096 documents by best-fit decreasing with a sorted
list of rooms, over `datasets` streaming in a `DataLoader`, without workers and with one for each core. Rates are those
after the first batch; every reader must deliver all tokens.

**Images.** 2,000 JPEGs of 240 to 640 pixels a side and their labels, the middle of each resized to 224 by 224, uint8,
in batches of 64. PIL (`ImageOps.fit`, bilinear) and torchvision (`decode_jpeg`, antialiased resize) decode in one
`DataLoader` worker for each core, from bytes that are in memory already; WebDataset reads tar files, litdata its own
chunks and MosaicML MDS, with PIL. Forebay reads Parquet and shuffles.

**Functions and steps.** A function of a millisecond on batches of 32 rows of *tokens*, a shuffled epoch after one
that starts the workers. *Compute* holds a core and the interpreter's lock, and shares the cores with the loop; *wait*
sleeps, which shows the cost of handing batches over. `DataLoader` reads in its workers, and runs the function there.
*Pinned memory* is that of the same batches of *tokens* without a function: where there is no accelerator it is plain.
Training is a thousand steps of 20 ms that sleep, as a process does that waits for a GPU; waiting is the time in `next`
after the first batch. litdata and MosaicML read what they converted, from the same store, into an empty
folder of each run.
"""

"""Recognises data files and their kind by the extensions of their names."""

from __future__ import annotations

import re
from collections import Counter
from posixpath import basename
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PARQUET = frozenset({"parquet", "geoparquet", "gpq"})
"""Extensions of Parquet files."""

_OTHER = frozenset(
    """
3G2 3GP 3g2 3gp AIFF APNG ASF AU AVI AVR BLP BMP BUFR BW CAF CUR DCX DDS DIB EMF ENT EPS F4V FIT FITS FLAC FLC FLI
FLV FTC FTU GBR GIF GLB GLTF GRIB HTK ICB ICNS ICO IIM IM IRCAM J2C J2K JFIF JP2 JPC JPE JPEG JPF JPG JPX M4V MAT4
MAT5 MKV MOV MP3 MP4 MPC2K MPEG MPG MSP MXF NII NIST NUT OGG OGM OPUS PAF PBM PCD PCX PDB PDF PGM PLY PNG PNM PPM PS
PSD PVF PXR RAS RAW RF64 RGB RGBA SD2 SDS SGI STL SVX TGA TIF TIFF VDA VOC VST W64 WAV WAVEX WEBM WEBP WMA WMF WMV
WVE XBM XI XPM afa aiff apng arrow asf au avi avr blp bmp bufr bw caf cif conll conllu csv cur dcx dds dib emf ent
eps eval f4v fa faa fasta fastq ffn fit fits flac flc fli flv fna fq frn ftc ftu gb gbk gbr genbank gif glb gltf
grib h5 hdf5 htk icb icns ico idx iim im ircam j2c j2k jfif jp2 jpc jpe jpeg jpf jpg jpx json jsonl lance m4v
manifest mat4 mat5 md mkv mmcif mov mp3 mp4 mpc2k mpeg mpg msp mxf ndjson nii nist nut ogg ogm opus paf pbm pcd pcx
pdb pdf pgm ply png pnm ppm ps psd pvf pxr ras raw rf64 rgb rgba sd2 sds sgi stl svx tar tga tif tiff toml tsfile
tsv txn txt vda voc vortex vst w64 wav wavex webm webp wma wmf wmv wve xbm xi xml xpm zip
""".split()  # noqa: SIM905 - a list would take too many lines
)
"""Extensions of all other files that `datasets` reads."""

_METADATA = frozenset(
    {"instruction.md", "latest_version_hint.json", "metadata.csv", "metadata.jsonl", "metadata.parquet", "task.toml"}
)
"""Files beside images and other media, which do not determine the kind of a dataset."""

_FAVOURITES = ("parquet", "lance", "vortex", "arrow", "jsonl", "json", "csv")
"""The kinds preferred among equally many files."""

_NO_KIND = frozenset({"idx", "txn", "manifest"})
"""Extensions that only accompany others."""

_KEPT = re.compile(r".*(\.parquet|\.geoparquet|\.gpq|\.zip)(\..+)?$")
"""Paths that are kept if a dataset is Parquet."""


def holds_data(path: str) -> bool:
    """Whether `datasets` reads a file of this name."""
    suffixes = basename(path).split(".")[1:]
    return any(suffix in PARQUET or suffix in _OTHER for suffix in suffixes)


def kind_of(paths: Iterable[str]) -> str | None:
    """Returns the kind of most of the files: their extension, or `parquet` for all extensions of Parquet."""
    names = [basename(path) for path in paths]
    counts = Counter((suffix.lower(), name in _METADATA) for name in names for suffix in name.split(".")[1:])

    def rank(counted: tuple[tuple[str, bool], int]) -> tuple[object, ...]:
        (suffix, is_metadata), count = counted
        return (not is_metadata, count, *(suffix == favourite for favourite in _FAVOURITES), "." + suffix)

    for (suffix, _), _ in sorted(counts.items(), key=rank, reverse=True):
        if suffix in PARQUET:
            return "parquet"
        if suffix in _OTHER and suffix not in _NO_KIND:
            return suffix
    return None


def only_parquet(paths: Iterable[str]) -> list[str]:
    """Returns the paths that are kept if a dataset is Parquet."""
    return [path for path in paths if _KEPT.match(path)]

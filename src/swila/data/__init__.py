"""Token data for pretraining: preparation of text, memory-mapped shards, and batches as a function of the position."""

from swila.data.manifest import Manifest as Manifest
from swila.data.manifest import ShardManifest as ShardManifest
from swila.data.manifest import SplitManifest as SplitManifest
from swila.data.packing import PackedSequences as PackedSequences
from swila.data.preparation import PreparationProgress as PreparationProgress
from swila.data.preparation import Prepared as Prepared
from swila.data.preparation import prepare as prepare
from swila.data.sequences import StreamSequences as StreamSequences
from swila.data.sequences import TokenBatch as TokenBatch
from swila.data.sequences import open_sequences as open_sequences
from swila.data.shards import write_tokens as write_tokens
from swila.data.shuffling import ShuffledSequences as ShuffledSequences
from swila.data.token_data import TokenData as TokenData
from swila.data.token_data import TokenSplit as TokenSplit
from swila.data.tokenizer import TextTokenizer as TextTokenizer

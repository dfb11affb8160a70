"""The Bedrock Converse dialect: reading and writing messages."""

from foveal.core.wire.bedrock.read import read
from foveal.core.wire.bedrock.write import BEDROCK_CONVERSE, join, write, write_bound

__all__ = ["BEDROCK_CONVERSE", "join", "read", "write", "write_bound"]

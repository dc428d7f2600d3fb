from .async_file_adapter import AsyncFileAdapter as AsyncFileAdapter
from .direct_io import DIRECT_ALIGN as DIRECT_ALIGN, accepts_direct as accepts_direct
from .file_check import FileCheck as FileCheck, check_file as check_file
from .file_names import FoundFile as FoundFile
from .file_settings import FileSettings as FileSettings
from .object_directory import DirectoryLock as DirectoryLock, ObjectDirectory as ObjectDirectory
from .object_files import FileCounts as FileCounts, ObjectFiles as ObjectFiles
from .object_index import FileVersion as FileVersion, ObjectIndex as ObjectIndex, PendingFile as PendingFile
from .opening import open_object_files as open_object_files, unusable as unusable
from .placed_file import PlacedFile as PlacedFile
from .recovery import Recovery as Recovery

__version__: str

__all__: list[str]

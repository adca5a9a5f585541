from overlay.api import ApplyReport as ApplyReport
from overlay.api import CheckReport as CheckReport
from overlay.api import Code as Code
from overlay.api import DiffReport as DiffReport
from overlay.api import DoctorReport as DoctorReport
from overlay.api import Feature as Feature
from overlay.api import FeatureResult as FeatureResult
from overlay.api import FileResult as FileResult
from overlay.api import HunkResult as HunkResult
from overlay.api import ListReport as ListReport
from overlay.api import LiveProcess as LiveProcess
from overlay.api import Notice as Notice
from overlay.api import Obstacle as Obstacle
from overlay.api import OverlayError as OverlayError
from overlay.api import PatchRefused as PatchRefused
from overlay.api import ProcessesReport as ProcessesReport
from overlay.api import Reason as Reason
from overlay.api import Report as Report
from overlay.api import RevertReport as RevertReport
from overlay.api import State as State
from overlay.api import StatusReport as StatusReport
from overlay.api import TargetReport as TargetReport
from overlay.api import UsageError as UsageError
from overlay.api import apply as apply
from overlay.api import check as check
from overlay.api import diff as diff
from overlay.api import features as features
from overlay.api import processes as processes
from overlay.api import revert as revert
from overlay.api import status as status

__version__: str
__all__: list[str]

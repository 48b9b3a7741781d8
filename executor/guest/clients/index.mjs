// The same for ES modules.
import client from './index.cjs';

export const { SkillBridgeError, file, log, output, progress, tools, workspace } = client;
export default client;
